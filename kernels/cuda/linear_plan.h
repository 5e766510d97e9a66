// How a linear is computed: the order of its sums, which depends on the weight and on the type of x
// alone, and the spread over blocks and warps, which may depend on anything because it shows in no
// bit. Plain host code.
//
// On the matrix units (LinearPath::kTensor) a leaf is cut into strands of equal length, a strand
// into steps of 32 columns; a step is two m16n8k16 products whose sixteen columns are permuted so
// that a lane's eight columns are neighbours in memory (device/mma.cuh). Steps are accumulated in
// ascending order by the matrix units, strands are added in ascending order, leaves as a tree.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/linear.h"

namespace tandem::cuda {

inline constexpr int kLinearStep = 32;      // columns
inline constexpr int kLinearTileOuts = 16;  // outputs of one matrix instruction
inline constexpr int kLinearTileRows = 8;   // rows of x of one matrix instruction

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
};

LinearOrder linear_order(const ops::LinearWeight& weight, DType x_dtype, int num_leaves);

// The wide kernel's stages of shared memory: two steps of a block's outputs and rows each. Three of
// the largest fit the smallest GPU's 99 KiB.
inline constexpr int kWideStages = 3;
inline constexpr int kWideColumns = 2 * kLinearStep;
inline constexpr int kWideOuts = 128;

enum class LinearKernel { kPlain, kNarrow, kWide };

struct LinearPlan {
  LinearKernel kernel = LinearKernel::kPlain;
  int row_tiles = 1;  // kNarrow: tiles of 8 rows a block; kWide: tiles of 8 rows a warp
  int warps = 1;      // kNarrow: of a block, which share its strands
  std::size_t shared_bytes = 0;
};

// x_is_aligned: pointer and rows on multiples of 16 bytes.
LinearPlan plan_linear(const LinearOrder& order, ops::WeightFormat format, int num_rows,
                       bool x_is_aligned, std::size_t shared_limit_bytes);

}  // namespace tandem::cuda
