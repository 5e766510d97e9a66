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

__device__ __forceinline__ float load_past_l1(const bf16* x) {
  return to_float(bf16{__ldcg(reinterpret_cast<const unsigned short*>(x))});
}

// Two neighbours as they lie in memory. As to_bf16(), but for the payload of a NaN.
__device__ __forceinline__ uint32_t round_pair(float first, float second) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}
__device__ __forceinline__ float low_bf16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_bf16(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// Four neighbours.
__device__ __forceinline__ float4 widen4(uint2 x) {
  return make_float4(low_bf16(x.x), high_bf16(x.x), low_bf16(x.y), high_bf16(x.y));
}

__device__ __forceinline__ void store_float(float x, float* y) { *y = x; }
__device__ __forceinline__ void store_float(float x, bf16* y) {
  y->bits = static_cast<uint16_t>(round_pair(x, 0.0f));
}

// The value that store_float would leave behind.
template <class T>
__device__ __forceinline__ float rounded_to(float x) {
  T stored;
  store_float(x, &stored);
  return to_float(stored);
}

// A row's factor where rows may have none (LinearArgs::row_factors).
__device__ __forceinline__ float factor_of(const float* row_factors, std::int64_t row) {
  return row_factors == nullptr ? 1.0f : row_factors[row];
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
// x * sigmoid(x), with one division.
__device__ __forceinline__ float silu(float x) { return x / (1.0f + expf(-x)); }
__device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

}  // namespace tandem::cuda
