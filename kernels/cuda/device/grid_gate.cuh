// Gates that all blocks of a kernel pass together, in kernels whose blocks are all on the GPU at
// once: not more of them than processors, each fitting one.
//
// A gate is a word of device memory that kernels hand on to each other, 0 at first. Its upper half
// counts how often the gate has opened; its lower half how many blocks have come since, the first
// block counting for all that a half can hold but the others. So nobody has to reset it, and grids
// may differ.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/arrival.cuh"

namespace tandem::cuda {

inline constexpr int kGateBits = 16;

// One thread of each block comes, after a barrier of the block: what its threads have written
// before is seen by whoever has passed. A kernel that may begin before the previous one has ended
// must have waited for it.
__device__ __forceinline__ uint32_t arrive_at_gate(uint32_t* gate) {
  const uint32_t weight = blockIdx.x == 0 ? (1u << kGateBits) - (gridDim.x - 1) : 1u;
  __threadfence();
  return add_in_order(gate, weight);
}

// Returns once every block has come.
__device__ __forceinline__ void pass_gate(const uint32_t* gate, uint32_t ticket) {
  uint32_t now;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(gate) : "memory");
  } while ((now ^ ticket) >> kGateBits == 0);
  __threadfence();
}

}  // namespace tandem::cuda
