// RMSNorm, alone and behind the update of the residual stream.
//   y = x * rsqrt(mean(x^2) + eps) * (1 + w)   (zero-centred, Zhang & Sennrich 2019 with Qwen's +1)
// fp32 inside, one rounding at the end. The mean is a reduction over one row in a fixed order that
// depends on `width` only.
#pragma once

#include <cstdint>

#include "base/types.h"
#include "kernels/backend.h"

namespace tandem::ops {

enum class NormWeight { kZeroCentered, kPlain };  // (1 + w), w

struct RmsNormArgs {
  const void* x = nullptr;       // [num_rows, width], row stride x_stride elements
  DType x_dtype = DType::kBF16;  // BF16 or F32
  std::int64_t x_stride = 0;
  const float* weight = nullptr;  // [width]
  NormWeight weight_kind = NormWeight::kZeroCentered;
  float eps = 1e-6f;
  int num_rows = 0;
  int width = 0;
  void* y = nullptr;  // [num_rows, width], row stride y_stride; may alias x when strides agree
  DType y_dtype = DType::kBF16;
  std::int64_t y_stride = 0;
};

void rms_norm(Backend& backend, const RmsNormArgs& args);

enum class ResidualUpdate {
  kAdd,      // residual = round(residual + delta)
  kReplace,  // residual = round(delta)
};

// The receiving side of an all-reduce: folds the fp32 sum into the residual stream and norms it.
//
// A row's factor, 1 / sqrt(mean + eps), may be left to the linears that read y
// (LinearArgs::row_factors), which is as exact: W (f x (1 + w)) = f (W (x (1 + w))), with one
// rounding of y either way. Then y waits for no reduction over the row.
struct ResidualRmsNormArgs {
  void* residual = nullptr;  // [num_rows, width], in and out
  DType residual_dtype = DType::kBF16;
  const float* delta = nullptr;  // [num_rows, width]
  ResidualUpdate update = ResidualUpdate::kAdd;
  const float* weight = nullptr;  // [width], zero-centred
  float eps = 1e-6f;
  int num_rows = 0;
  int width = 0;
  void* y = nullptr;  // [num_rows, width], norm of the *rounded* residual; residual_dtype
  float* row_factors = nullptr;  // [num_rows], out: which y is then without
};

void residual_rms_norm(Backend& backend, const ResidualRmsNormArgs& args);

}  // namespace tandem::ops
