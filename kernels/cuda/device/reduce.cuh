// Sums over a warp and a block in an order that depends on the number of threads alone. Kernels fix
// that number, so the order depends on the operator alone.
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

// All threads of the block get the sum: warps in ascending order.
template <int kThreads>
__device__ __forceinline__ float block_sum(float x) {
  constexpr int kWarps = kThreads / kWarp;
  static_assert(kThreads % kWarp == 0);
  __shared__ float of_warp[kWarps];
  x = warp_sum(x);
  __syncthreads();  // the array may still be read from a sum before
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = x;
  __syncthreads();
  float sum = of_warp[0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum += of_warp[w];
  return sum;
}

}  // namespace tandem::cuda
