// How a linear is computed: the order of its sums, which depends on the weight and on the type of x
// alone, and the spread over blocks and warps, which may depend on anything because it shows in no
// bit. Plain host code.
//
// On the matrix units (LinearPath::kTensor) a leaf is cut into strands of equal length, a strand
// into steps of 32, 64 or 128 columns: what four lanes load of a row in 16 bytes each. Every eight
// columns of a lane are two m16n8k16 products (device/mma.cuh). Products are accumulated in
// ascending order by the matrix units, strands are added in ascending order, leaves as a tree.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/linear.h"

namespace tandem::cuda {

inline constexpr int kLinearStep = 32;      // columns of a step of bf16
inline constexpr int kLinearTileOuts = 16;  // outputs of one matrix instruction
inline constexpr int kLinearTileRows = 8;   // rows of x of one matrix instruction

constexpr bool is_nibble(ops::WeightFormat format) {
  return format == ops::WeightFormat::kNvfp4 || format == ops::WeightFormat::kMxfp4;
}
// Scales that vary along a row and are applied to sums.
constexpr bool has_column_scales(ops::WeightFormat format) {
  return format == ops::WeightFormat::kFp8Block || format == ops::WeightFormat::kInt8Group;
}
// Columns of the codes that a lane loads at once, 16 bytes.
constexpr int lane_columns(ops::WeightFormat format) {
  if (is_nibble(format)) return 32;
  const bool plain = format == ops::WeightFormat::kBf16 || format == ops::WeightFormat::kF32;
  return plain ? 8 : 16;
}

enum class LinearPath {
  kTensor,
  kPlain,  // fp32 multiply-adds: F32 operands, and layouts that cannot be loaded 16 bytes at a time
};

struct LinearOrder {
  LinearPath path = LinearPath::kPlain;
  int num_leaves = 1;
  std::int64_t leaf_columns = 0;
  int strands_per_leaf = 1;         // kTensor
  std::int64_t strand_columns = 0;  // of all strands but a leaf's last, which may be shorter
  int scale_columns = 0;  // columns whose products share a factor that is applied to their sum; 0:
                          // a strand's all

  constexpr int num_strands() const { return num_leaves * strands_per_leaf; }
  bool operator==(const LinearOrder&) const = default;
};

LinearOrder linear_order(const ops::LinearWeight& weight, DType x_dtype, int num_leaves);

// The wide kernel's stages of shared memory: two steps of a block's outputs and rows each. Three of
// the largest fit the smallest GPU's 99 KiB.
inline constexpr int kWideStages = 3;
inline constexpr int kWideColumns = 2 * kLinearStep;
inline constexpr int kWideOuts = 128;

// The narrow kernel's tiles of 16 outputs a block, for its tiles of 8 rows.
constexpr int narrow_out_tiles(ops::WeightFormat format, int row_tiles) {
  if (row_tiles == 1) return 1;
  // Sums under a scale double the registers.
  return row_tiles > 2 && has_column_scales(format) ? 1 : 2;
}
constexpr int narrow_max_warps(int row_tiles) { return row_tiles == 1 ? 16 : 8; }

// What a kernel needs of a processor, and how many of those there are.
struct NarrowResources {
  int registers = 0;             // of a thread
  std::size_t shared_bytes = 0;  // of a block
  int num_processors = 1;
  std::size_t shared_bytes_per_processor = 0;
};
// Warps of a block that share its strands. Decides the time alone: how long blocks live, how many
// fit the GPU at once, and so how much of it the last ones to start leave idle.
int narrow_warps(int strands, int blocks, int max_warps, const NarrowResources& resources);

enum class LinearKernel {
  kPlain,
  kNarrow,
  kWide,
  // Chosen before plan_linear() is asked, by predicates of their own.
  kStream,  // linear_stream_plan.h
  kPrompt   // linear_prompt_plan.h
};

struct LinearPlan {
  LinearKernel kernel = LinearKernel::kPlain;
  int row_tiles = 1;  // kNarrow: tiles of 8 rows a block; kWide: tiles of 8 rows a warp
  std::size_t shared_bytes = 0;
};

// x_is_aligned: pointer and rows on multiples of 16 bytes.
LinearPlan plan_linear(const LinearOrder& order, ops::WeightFormat format, int num_rows,
                       bool x_is_aligned, std::size_t shared_limit_bytes);

}  // namespace tandem::cuda
