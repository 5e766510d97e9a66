// y = x W^T with fp32 accumulation: the operator that decides a decode step's time.
//
// Order of summation (determinism.md, rules 1 and 2): K is cut into `num_leaves` equal leaves; each
// leaf is accumulated in fp32 in an order fixed by the leaf's length and the weight format alone;
// leaves are added as a binary tree ((l0 + l1) + (l2 + l3)) ... A row's result does not depend on
// num_rows, on the other rows, on the number of threads, or on which rank owns the leaves: a rank
// that owns a subtree of the tensor's leaves passes its own number of leaves, and the levels above
// are added by the collective in the same tree.
#pragma once

#include <cstdint>
#include <span>

#include "base/types.h"
#include "kernels/backend.h"
#include "kernels/ops/batch_view.h"

namespace tandem::ops {

// Storage formats of a weight matrix. The scale factors of the quantized ones are described in
// checkpoint/quant_format.h; a backend lists what it runs in linear_supports().
enum class WeightFormat {
  kBf16,
  kF32,
  kFp8Block,
  kFp8Tensor,
  kFp8Channel,
  kNvfp4,
  kMxfp4,
  kInt8Channel,
  kInt8Group
};

// Formats whose codes a backend may want in an order of its own.
constexpr bool needs_prepacking(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Tensor:
    case WeightFormat::kFp8Channel:
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4:
      return true;
    default:
      return false;
  }
}

struct LinearWeight {
  WeightFormat format = WeightFormat::kBf16;
  bool prepacked = false;         // by prepack_weight()
  std::int64_t out_features = 0;  // N
  std::int64_t in_features = 0;   // K
  const void* data = nullptr;     // [N, K] elements, or packed codes
  const void* scales = nullptr;   // block/group/channel scales; nullptr for kBf16, kF32
  DType scale_dtype = DType::kF32;
  int block_rows = 0, block_cols = 0;  // area of one scale
  float scale_2 = 1.0f;                // second-level scale (NVFP4, FP8 per tensor)
};

struct LinearArgs {
  const void* x = nullptr;       // [num_rows, K], row stride x_stride elements
  DType x_dtype = DType::kBF16;  // BF16 or F32
  std::int64_t x_stride = 0;
  int num_rows = 0;
  LinearWeight weight;
  // Prompt rows may be summed by other instructions than generated ones; the leaves are the same.
  RowClass row_class = RowClass::kGenerated;
  int num_leaves = 1;  // power of two that divides K
  // [num_rows]: a row's sums are multiplied with its factor before they are rounded; nullptr: with
  // none (a deferred norm, ops/rms_norm.h).
  const float* row_factors = nullptr;
  void* y = nullptr;             // [num_rows, N], row stride y_stride; must not alias x
  DType y_dtype = DType::kBF16;  // BF16 (one rounding at the end) or F32
  std::int64_t y_stride = 0;
};

bool linear_supports(BackendKind kind, WeightFormat format);

// Lays out the codes of a weight as the backend's linears read them: in place, and once, when they
// are in the backend's memory (on a multiple of four bytes) and before the first linear().
// Waits until it is done: a linear may fetch its weight while what was enqueued before still runs.
// What the codes are then is the backend's business. Formats that need none are left alone.
void prepack_weight(Backend& backend, LinearWeight& weight);

void linear(Backend& backend, const LinearArgs& args);

// Several linears of the same rows: x, x_dtype, x_stride, num_rows, row_class and row_factors
// agree. To the bits of one linear() after the other, but a backend may run them as one.
inline constexpr int kMaxLinearGroup = 4;
void linear_group(Backend& backend, std::span<const LinearArgs> group);

}  // namespace tandem::ops
