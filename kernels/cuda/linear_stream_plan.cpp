#include "kernels/cuda/linear_stream_plan.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "kernels/cuda/gated_delta_mix_plan.h"
#include "kernels/cuda/rms_norm_rows.h"

namespace tandem::cuda {
namespace {

constexpr int kTileRowBytes = 128;
constexpr int kSwizzleRows = 8;
constexpr int kTileColumns = 64;
constexpr int kStagesWanted = 10;       // more, and handing them over bounds the time
constexpr int kOtherBytes = 18 * 1024;  // of tables, sums and barriers, about
constexpr int kMaxStageChunks = 8;
constexpr int kStageCopies = 31;  // a warp's lanes each start one, and the last that of x
constexpr int kMinStages = 4;     // of a link by itself, unless its rows are the fewest
constexpr int kMinChainStages = 3;
constexpr int kMaxStages = 12;
constexpr int kManyProcessors = 100;
constexpr int kLateBlocks = 8;       // at a chain's start
constexpr int kLateCodeBlocks = 40;  // with codes
constexpr int kLateCodeBlocksOfManyRows = 24;
constexpr int kSideBlocks = 4;
constexpr int kSideShare = 32;  // a side link has at most this part of the other one's outputs
constexpr std::size_t kTileAlignment = 1024;
constexpr std::size_t kReservedBytes = 1024;  // that a processor sets aside for each block
constexpr std::size_t kMixerShare = 6;        // the least part of shared memory that is left for it
constexpr std::size_t kBarrierBytes = 8;
constexpr std::size_t kTicketBytes = sizeof(std::uint32_t);

std::int64_t divide_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit; }

bool aligned16(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

std::int64_t num_outputs(const ChainLink& link) {
  std::int64_t outs = 0;
  for (const ops::LinearArgs& linear : link.group) outs += linear.weight.out_features;
  return outs;
}

// Whether a link beside the one before is so small that a few blocks do it meanwhile.
bool is_side_link(std::span<const ChainLink> links, std::size_t i) {
  return i < links.size() && links[i].is_beside &&
         num_outputs(links[i]) * kSideShare <= num_outputs(links[i - 1]);
}

// Spreads a link over blocks. Those at the end have none of the first link of a chain, because they
// start late, when the kernel before leaves their processors (some 5 us on an H200; with codes more
// of them do); nor has the last one behind a norm, because it finds a row's factor. That takes less
// time than it saves only where many processors share much bandwidth.
void choose_blocks(std::span<const ChainLink> links, std::size_t i, bool codes, int row_tiles,
                   int num_processors, StreamPlan& plan) {
  plan.first_block = 0;
  plan.num_blocks = num_processors;
  if (num_processors < kManyProcessors) return;
  if (is_side_link(links, i)) {
    plan.first_block = num_processors - kSideBlocks;
    plan.num_blocks = kSideBlocks;
  } else if (is_side_link(links, i + 1)) {
    plan.num_blocks -= kSideBlocks;
  } else if (links[i].has_norm) {
    plan.num_blocks -= 1;
  } else if (i == 0 && links.size() > 1) {
    // With many rows sums take memory that stages want: more blocks, fewer tiles in each.
    const int late_codes = row_tiles == 1 ? kLateCodeBlocks : kLateCodeBlocksOfManyRows;
    plan.num_blocks -= codes ? late_codes : kLateBlocks;
  }
}

// Boxes, their places and the tiles for a number of sweeps.
void place_boxes(std::span<const ops::LinearArgs> group, StreamPlan& plan) {
  plan.chunk_rows = 0;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const std::int64_t outs = group[i].weight.out_features;
    const std::int64_t box = divide_up(outs, std::int64_t{plan.num_blocks} * plan.sweeps);
    plan.box_rows[i] = static_cast<int>(box);
    plan.first_row[i] = plan.chunk_rows;
    plan.chunk_rows += static_cast<int>(box);
  }
  plan.chunk_rows = static_cast<int>(divide_up(plan.chunk_rows, kSwizzleRows)) * kSwizzleRows;
  plan.tiles = static_cast<int>(divide_up(plan.chunk_rows, kLinearTileOuts));
}

int chunk_bytes(const StreamPlan& plan, int x_tile_bytes) {
  return plan.chunk_rows * kTileRowBytes + plan.chunk_columns / kTileColumns * x_tile_bytes;
}

// Warps for tiles that have been placed, and stages of at most so many bytes.
void size_stages(const ChainLink& link, int warps, int x_tile_bytes, int most_bytes, int most_turns,
                 StreamPlan& plan) {
  plan.turns = most_turns;
  while (plan.turns > 1 &&
         (plan.tiles * plan.turns > warps || plan.turns > link.order.num_strands())) {
    plan.turns /= 2;
  }
  // As equal as whole chunks can be.
  const int most =
      std::clamp(most_bytes / chunk_bytes(plan, x_tile_bytes), 1,
                 std::min(kMaxStageChunks, kStageCopies / static_cast<int>(link.group.size())));
  const auto strand_stages = static_cast<int>(divide_up(plan.chunks, most));
  plan.stage_chunks = static_cast<int>(divide_up(plan.chunks, strand_stages));
  plan.x_bytes = plan.stage_chunks * plan.chunk_columns / kTileColumns * x_tile_bytes;
}

// For links that have been sized.
RingPlan plan_ring(std::span<const StreamPlan> links, std::span<const ChainLink> chain, int warps,
                   int row_tiles, std::size_t shared_limit_bytes) {
  RingPlan ring;
  ring.warps = warps;
  ring.row_tiles = row_tiles;
  int turns = 1;
  for (std::size_t i = 0; i < links.size(); ++i) {
    const StreamPlan& link = links[i];
    ring.sum_floats = std::max(ring.sum_floats, link.sum_levels * link.tiles * kLinearTileOuts *
                                                    row_tiles * kLinearTileRows);
    ring.num_strands += chain[i].order.num_strands() + kStreamSpareStrands;
    ring.stage_bytes = std::max(ring.stage_bytes, link.stage_bytes());
    ring.max_tiles = std::max(ring.max_tiles, link.tiles);
    turns = std::max(turns, link.turns);
  }
  // A last tile of eight rows reads eight more behind the last stage, for nobody: the tables.
  ring.table_bytes = std::max(static_cast<int>(links.size() * kStreamLinkBytes) +
                                  ring.num_strands * static_cast<int>(2 * sizeof(int)),
                              kLinearTileOuts * kTileRowBytes);
  const std::size_t fixed =
      kTileAlignment + static_cast<std::size_t>(ring.table_bytes) +
      kBarrierBytes * (2 * kMaxStages + links.size() * static_cast<std::size_t>(warps + 2)) +
      sizeof(float) *
          static_cast<std::size_t>(ring.sum_floats + warps * kStreamMaxRows + kNormWarps) +
      kTicketBytes * (links.size() + 1);
  const std::size_t room = shared_limit_bytes > fixed ? shared_limit_bytes - fixed : 0;
  ring.stages = static_cast<int>(
      std::min<std::size_t>(room / static_cast<std::size_t>(ring.stage_bytes), kMaxStages));
  // Whole turns: a stage then belongs to one turn of a link, whose warps use it in order. Shared by
  // two, its barrier could be a round behind for one of them, which a parity does not tell.
  ring.stages -= ring.stages % turns;
  // Starting a stage's copies takes one warp nearly as long as memory takes to bring them.
  if (ring.stages >= kMinStages) {
    ring.producers = kStreamProducers;
    ring.stages -= ring.stages % kStreamProducers;
  }
  ring.shared_bytes =
      fixed + static_cast<std::size_t>(ring.stages) * static_cast<std::size_t>(ring.stage_bytes);
  return ring;
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

bool stream_folds(std::span<const ops::LinearArgs> group, const ops::ResidualRmsNormArgs& norm) {
  const ops::LinearArgs& linear = group.front();
  if (linear.x == norm.residual || linear.x == norm.y) return false;
  return group.size() == 1 && linear.y == norm.delta && linear.y_dtype == DType::kF32 &&
         linear.weight.out_features == norm.width && linear.num_rows == norm.num_rows &&
         (linear.num_rows == 1 || linear.y_stride == norm.width);
}

ChainPlan plan_chain(std::span<const ChainLink> links, int num_processors,
                     std::size_t shared_limit_bytes) {
  ChainPlan chain;
  chain.codes = std::any_of(links.begin(), links.end(), [](const ChainLink& link) {
    return link.group.front().weight.format != ops::WeightFormat::kBf16;
  });
  const int warps = chain.codes ? kStreamCodeWarps : kStreamWarps;
  const int row_tiles = links.front().group.front().num_rows <= kLinearTileRows ? 1 : 2;
  // Some memory is left for the kernel between two chains, so that it can start beside either; with
  // codes registers would not do, and many rows are mixed by blocks that take more. More than half
  // is taken in any case: of two blocks on one processor, another one would lack its own.
  const std::size_t mixer_bytes = kMixStripsBytes + kReservedBytes;
  if (!chain.codes && row_tiles == 1 && shared_limit_bytes >= kMixerShare * mixer_bytes) {
    shared_limit_bytes -= mixer_bytes;
  }
  const int x_tile_bytes = row_tiles * kLinearTileRows * kTileRowBytes;
  int first_strand = 0;
  // A stage holds a chunk of the widest link, and of the others as many as fit one of that size.
  int most_bytes = (static_cast<int>(shared_limit_bytes) - kOtherBytes) / kStagesWanted;
  for (std::size_t i = 0; i < links.size(); ++i) {
    const auto& group = links[i].group;
    const LinearOrder& order = links[i].order;
    StreamPlan& plan = chain.links[i];
    plan.chunk_columns = stream_chunk_columns(group.front().weight.format);
    plan.sum_levels = std::bit_width(static_cast<unsigned>(order.num_leaves));
    plan.chunks = static_cast<int>(divide_up(order.strand_columns, plan.chunk_columns));
    plan.first_strand = first_strand;
    first_strand += order.num_strands() + kStreamSpareStrands;
    choose_blocks(links, i, chain.codes, row_tiles, num_processors, plan);
    for (;; ++plan.sweeps) {
      place_boxes(group, plan);
      if (plan.tiles > kStreamMaxTiles) continue;
      size_stages(links[i], warps, x_tile_bytes, 0, 1, plan);
      // What the fewest rows take always fits, if not several times.
      if (plan.chunk_rows == kSwizzleRows) break;
      const RingPlan alone =
          plan_ring({&plan, 1}, links.subspan(i, 1), warps, row_tiles, shared_limit_bytes);
      if (alone.stages >= kMinStages) break;
    }
    most_bytes = std::max(most_bytes, chunk_bytes(plan, x_tile_bytes));
  }
  const auto size = [&](int bytes, int most_turns) {
    for (std::size_t i = 0; i < links.size(); ++i) {
      size_stages(links[i], warps, x_tile_bytes, bytes, most_turns, chain.links[i]);
    }
    return plan_ring({chain.links, links.size()}, links, warps, row_tiles, shared_limit_bytes);
  };
  // As many turns as leave enough stages.
  int most_turns = kStreamMaxTurns;
  for (;; most_turns /= 2) {
    chain.ring = size(most_bytes, most_turns);
    if (chain.ring.stages >= kMinStages || most_turns == 1) break;
  }
  // As large as so many can be: of some links more chunks may fit.
  if (const int stages = chain.ring.stages; stages > 0) {
    const auto rest = static_cast<int>(shared_limit_bytes - chain.ring.shared_bytes);
    chain.ring = size(chain.ring.stage_bytes + rest / stages, most_turns);
    TANDEM_CHECK(chain.ring.stages >= stages, "{} stages of {}", chain.ring.stages, stages);
  }
  return chain;
}

bool chain_streams(const ChainPlan& plan) { return plan.ring.stages >= kMinChainStages; }

}  // namespace tandem::cuda
