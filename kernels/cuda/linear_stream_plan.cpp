#include "kernels/cuda/linear_stream_plan.h"

#include <algorithm>
#include <bit>

namespace tandem::cuda {
namespace {

constexpr int kTileRowBytes = 128;
constexpr int kSwizzleRows = 8;
constexpr int kTileColumns = 64;
constexpr int kStagesWanted = 7;  // more, and handing them over bounds the time
constexpr int kMaxStageChunks = 4;
constexpr int kMinStages = 4;
constexpr int kMaxStages = 16;
constexpr int kMaxTurns = 4;
constexpr std::size_t kTileAlignment = 1024;
constexpr std::size_t kBarrierBytes = 8;

std::int64_t divide_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit; }

bool aligned16(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

// Boxes, their places and the tiles for a number of sweeps.
void place_boxes(std::span<const ops::LinearArgs> group, int num_processors, StreamPlan& plan) {
  plan.grid = 1;
  plan.chunk_rows = 0;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const std::int64_t outs = group[i].weight.out_features;
    const std::int64_t box = divide_up(outs, std::int64_t{num_processors} * plan.sweeps);
    plan.box_rows[i] = static_cast<int>(box);
    plan.first_row[i] = plan.chunk_rows;
    plan.chunk_rows += static_cast<int>(divide_up(box, kSwizzleRows)) * kSwizzleRows;
    plan.grid = std::max(plan.grid, static_cast<int>(divide_up(outs, box * plan.sweeps)));
  }
  plan.tiles = static_cast<int>(divide_up(plan.chunk_rows, kLinearTileOuts));
}

// The ring for tiles that have been placed.
void size_ring(const LinearOrder& order, int most_warps, int x_tile_bytes, int chunk_x_tiles,
               std::size_t shared_limit_bytes, StreamPlan& plan) {
  plan.turns = kMaxTurns;
  while (plan.turns > 1 &&
         (plan.tiles * plan.turns > most_warps || plan.turns > order.num_strands())) {
    plan.turns /= 2;
  }
  const int chunk_bytes = plan.chunk_rows * kTileRowBytes + chunk_x_tiles * x_tile_bytes;
  // As equal as whole chunks can be.
  const int most = std::clamp(static_cast<int>(shared_limit_bytes) / kStagesWanted / chunk_bytes, 1,
                              kMaxStageChunks);
  const auto strand_stages = static_cast<int>(divide_up(plan.chunks, most));
  plan.stage_chunks = static_cast<int>(divide_up(plan.chunks, strand_stages));
  plan.stage_bytes = plan.stage_chunks * chunk_bytes;
  const auto strands = static_cast<std::size_t>(order.num_strands() + kStreamSpareStrands);
  const std::size_t fixed =
      kTileAlignment + kLinearTileOuts * kTileRowBytes +  // a last tile of eight rows reads on
      kBarrierBytes * static_cast<std::size_t>(2 * kMaxStages + plan.multiplying_warps()) +
      sizeof(float) * static_cast<std::size_t>(plan.sum_levels * plan.tiles * kLinearTileOuts *
                                               plan.row_tiles * kLinearTileRows) +
      2 * sizeof(int) * strands;
  const std::size_t room = shared_limit_bytes > fixed ? shared_limit_bytes - fixed : 0;
  plan.stages = static_cast<int>(
      std::min<std::size_t>(room / static_cast<std::size_t>(plan.stage_bytes), kMaxStages));
  while (plan.turns > plan.stages && plan.turns > 1) plan.turns /= 2;
  // Whole turns: a stage then belongs to one turn, whose warps use it in order. Shared by two, its
  // barrier could be a round behind for one of them, which a parity does not tell.
  plan.stages -= plan.stages % plan.turns;
  plan.shared_bytes =
      fixed + static_cast<std::size_t>(plan.stages) * static_cast<std::size_t>(plan.stage_bytes);
}

}  // namespace

bool stream_serves(const LinearOrder& order, const ops::LinearArgs& args) {
  if (order.path != LinearPath::kTensor || args.num_rows > kStreamMaxRows) return false;
  if (!aligned16(args.x) || !aligned16(args.weight.data)) return false;
  if (args.num_rows > 1 && args.x_stride % 8 != 0) return false;
  // Rows of weights on multiples of 16 bytes, whole steps of them, whole tiles of x.
  const int step = stream_chunk_columns(args.weight.format) / 2;
  if (order.leaf_columns % step != 0 || order.leaf_columns % 64 != 0) return false;
  return order.scale_columns == 0 || (order.scale_columns == 128 && order.leaf_columns % 128 == 0);
}

StreamPlan plan_stream(const LinearOrder& order, std::span<const ops::LinearArgs> group,
                       int num_processors, std::size_t shared_limit_bytes) {
  const ops::LinearArgs& first = group.front();
  const int chunk_columns = stream_chunk_columns(first.weight.format);
  // Codes take instructions to decode, so many warps. BF16 takes none: few warps, which leave
  // registers for the small kernels around a linear, and shared memory is left for them too. More
  // than half is taken in any case: of two blocks on one processor, another one would lack its own.
  const bool decodes = first.weight.format != ops::WeightFormat::kBf16;
  const int most_warps = decodes ? kStreamMaxWarps : kStreamMaxTiles;
  if (!decodes) shared_limit_bytes = shared_limit_bytes * 3 / 4;
  StreamPlan plan;
  plan.row_tiles = first.num_rows <= kLinearTileRows ? 1 : 2;
  plan.sum_levels = std::bit_width(static_cast<unsigned>(order.num_leaves));
  plan.chunks = static_cast<int>(divide_up(order.strand_columns, chunk_columns));
  const int x_tile_bytes = plan.row_tiles * kLinearTileRows * kTileRowBytes;
  for (plan.sweeps = 1;; ++plan.sweeps) {
    place_boxes(group, num_processors, plan);
    // What the fewest rows take always fits, if not several times.
    const bool is_smallest = plan.chunk_rows == static_cast<int>(group.size()) * kSwizzleRows;
    if (plan.tiles > kStreamMaxTiles) continue;
    size_ring(order, most_warps, x_tile_bytes, chunk_columns / kTileColumns, shared_limit_bytes,
              plan);
    if (plan.stages >= kMinStages || is_smallest) return plan;
  }
}

}  // namespace tandem::cuda
