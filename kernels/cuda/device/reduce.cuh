// Sums over a warp in a fixed order.
#pragma once

#include <cuda_runtime.h>

namespace tandem::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// The butterfly adds the same two subtrees on both sides of each exchange, and a + b == b + a:
// every lane holds the same bits. kLanes: a power of two; groups of that many neighbours are summed
// apart.
template <int kLanes = kWarp>
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, distance);
  }
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, distance));
  }
  return x;
}

}  // namespace tandem::cuda
