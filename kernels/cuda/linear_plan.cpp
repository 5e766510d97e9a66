#include "kernels/cuda/linear_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace tandem::cuda {
namespace {

using ops::WeightFormat;

// Short enough that several warps share an output, long enough that their sums are few. Also bounds
// the error of the matrix units, which truncate where fp32 rounds.
constexpr std::int64_t kStrandColumns = 512;
constexpr int kMaxNarrowRows = 32;

std::int64_t divide_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit; }

// Columns under one scale that the matrix units sum before it is applied; 0: all, or none because
// the scale is part of the operand (FP4: code times block scale is exact in bf16).
std::int64_t scale_columns(const ops::LinearWeight& w) {
  return has_column_scales(w.format) ? w.block_cols : 0;
}

bool tensor_path_serves(const ops::LinearWeight& w, DType x_dtype, int num_leaves) {
  if (x_dtype != DType::kBF16 || w.format == WeightFormat::kF32) return false;
  const std::int64_t leaf = w.in_features / num_leaves;
  const int unit = lane_columns(w.format);
  if (leaf % unit != 0) return false;
  switch (w.format) {
    case WeightFormat::kNvfp4:
      return w.scale_dtype == DType::kF8E4M3 && w.block_rows == 1 && w.block_cols == 16;
    case WeightFormat::kMxfp4:
      return w.scale_dtype == DType::kF8E8M0 && w.block_rows == 1 && w.block_cols == 32;
    case WeightFormat::kFp8Block:
    case WeightFormat::kInt8Group:
      return w.block_cols % unit == 0 && (num_leaves == 1 || leaf % w.block_cols == 0);
    default:
      return true;
  }
}

}  // namespace

LinearOrder linear_order(const ops::LinearWeight& weight, DType x_dtype, int num_leaves) {
  LinearOrder order{.num_leaves = num_leaves, .leaf_columns = weight.in_features / num_leaves};
  if (!tensor_path_serves(weight, x_dtype, num_leaves)) return order;
  order.path = LinearPath::kTensor;
  const std::int64_t scaled = scale_columns(weight);
  order.scale_columns = static_cast<int>(scaled);
  // Equal strands, so that warps that share them are busy for equal times; a strand holds whole
  // steps and whole scales.
  const std::int64_t step =
      std::max<std::int64_t>(4 * lane_columns(weight.format), 2 * kLinearStep);
  const std::int64_t unit = scaled == 0 ? step : std::lcm(scaled, step);
  const std::int64_t strands = divide_up(order.leaf_columns, kStrandColumns);
  order.strand_columns = divide_up(divide_up(order.leaf_columns, strands), unit) * unit;
  order.strands_per_leaf = static_cast<int>(divide_up(order.leaf_columns, order.strand_columns));
  return order;
}

LinearPlan plan_linear(const LinearOrder& order, WeightFormat format, int num_rows,
                       bool x_is_aligned, std::size_t shared_limit_bytes) {
  if (order.path == LinearPath::kPlain) return {};
  if (format == WeightFormat::kBf16 && x_is_aligned && num_rows > kMaxNarrowRows) {
    const int row_tiles = num_rows > 64 ? 8 : 4;
    const auto tile_rows = static_cast<std::size_t>(kWideOuts + 2 * kLinearTileRows * row_tiles);
    return {.kernel = LinearKernel::kWide,
            .row_tiles = row_tiles,
            .shared_bytes = kWideStages * tile_rows * kWideColumns * sizeof(std::uint16_t)};
  }
  LinearPlan plan{.kernel = LinearKernel::kNarrow};
  plan.row_tiles = num_rows <= 8 ? 1 : num_rows <= 16 ? 2 : 4;
  const auto bytes = [&order, format](int row_tiles) {
    const int outs = kLinearTileOuts * narrow_out_tiles(format, row_tiles);
    return sizeof(float) * static_cast<std::size_t>(outs * kLinearTileRows * row_tiles) *
           static_cast<std::size_t>(order.num_strands());
  };
  while (plan.row_tiles > 1 && bytes(plan.row_tiles) > shared_limit_bytes) plan.row_tiles /= 2;
  plan.shared_bytes = bytes(plan.row_tiles);
  return plan;
}

int narrow_warps(int strands, int blocks, int max_warps, const NarrowResources& r) {
  // Fewer warps on a processor leave memory waiting; more share its bandwidth.
  constexpr int kBusyWarps = 24;
  constexpr int kWarpsOfProcessor = 48;  // what all targets have
  constexpr int kRegistersOfProcessor = 64 * 1024;
  constexpr std::size_t kSharedOfSystem = 1024;  // of every block
  const int warp_registers = static_cast<int>(divide_up(r.registers, 8)) * 8 * 32;
  const auto by_shared =
      static_cast<int>(r.shared_bytes_per_processor / (r.shared_bytes + kSharedOfSystem));
  // Shorter-lived blocks keep loads and products of neighbours apart in time.
  constexpr int kFewestWarps = 4;
  int best = 1;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int warps = std::min(strands, kFewestWarps); warps <= std::min(strands, max_warps);
       ++warps) {
    const int resident = std::max(1, std::min({by_shared, kWarpsOfProcessor / warps,
                                               kRegistersOfProcessor / (warps * warp_registers)}));
    // A unit is the time of a strand when one warp has the processor's bandwidth for itself.
    const std::int64_t rounds = divide_up(strands, warps);
    const std::int64_t wave = std::int64_t{resident} * r.num_processors;
    const std::int64_t rest = divide_up(blocks % wave, r.num_processors);
    std::int64_t cost = blocks / wave * rounds * std::max(kBusyWarps, resident * warps);
    if (rest > 0) cost += rounds * std::max<std::int64_t>(kBusyWarps, rest * warps);
    if (cost < least) {
      least = cost;
      best = warps;
    }
  }
  return best;
}

}  // namespace tandem::cuda
