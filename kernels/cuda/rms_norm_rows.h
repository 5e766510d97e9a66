// The warps that norm a row, and which rows they can load by whole groups of elements
// (rms_norm.cuh). Plain host code.
#pragma once

#include <cstdint>

#include "kernels/ops/rms_norm.h"

namespace tandem::cuda {

// Part of the order of summation.
inline constexpr int kNormWarps = 8;
inline constexpr int kNormGroup = 4;

inline bool in_whole_groups(const void* data, DType dtype) {
  return reinterpret_cast<std::uintptr_t>(data) % (kNormGroup * dtype_bytes(dtype)) == 0;
}

inline bool has_wide_rows(const ops::ResidualRmsNormArgs& a) {
  return a.width % kNormGroup == 0 && in_whole_groups(a.residual, a.residual_dtype) &&
         in_whole_groups(a.y, a.residual_dtype) && in_whole_groups(a.delta, DType::kF32) &&
         in_whole_groups(a.weight, DType::kF32);
}

}  // namespace tandem::cuda
