// Scalars: storage types to fp32 and back, and the functions that the formulas use. The accurate
// variants of exp, log, sin and cos throughout; nothing is compiled with fast-math.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "base/types.h"

namespace tandem::cuda {

inline constexpr float kInfinity = __builtin_huge_valf();

template <class T>
__device__ __forceinline__ float load_float(const T* x) {
  return to_float(*x);
}

__device__ __forceinline__ void store_float(float x, float* y) { *y = x; }
// to_bf16 keeps a NaN's payload, as the CPU backend does.
__device__ __forceinline__ void store_float(float x, bf16* y) { *y = to_bf16(x); }

// The value that store_float would leave behind.
template <class T>
__device__ __forceinline__ float rounded_to(float x) {
  T stored;
  store_float(x, &stored);
  return to_float(stored);
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
// x * sigmoid(x), with one division.
__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

}  // namespace tandem::cuda
