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
// before is seen by whoever has passed. Counting releases it and passing acquires it; fences beside
// these would cost a gate another microsecond. A kernel that may begin before the previous one has
// ended must have waited for it. `blocks`: if not all come, how many; one of them is the first.
// Returns a ticket for pass_gate().
__device__ __forceinline__ uint32_t arrive_at_gate(uint32_t* gate, bool is_first, int blocks) {
  const uint32_t weight = is_first ? (1u << kGateBits) - static_cast<uint32_t>(blocks - 1) : 1u;
  return add_in_order(gate, weight);
}
__device__ __forceinline__ uint32_t arrive_at_gate(uint32_t* gate) {
  return arrive_at_gate(gate, blockIdx.x == 0, static_cast<int>(gridDim.x));
}

// For those who pass without having come: the ticket of who reads this before anybody comes, and
// that of so many openings later.
__device__ __forceinline__ uint32_t read_gate(const uint32_t* gate) {
  uint32_t now;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(gate) : "memory");
  return now;
}
__device__ __forceinline__ uint32_t round_later(uint32_t ticket, int openings) {
  return ticket + (static_cast<uint32_t>(openings) << kGateBits);
}

// Returns once every block has come that is to.
__device__ __forceinline__ void pass_gate(const uint32_t* gate, uint32_t ticket) {
  uint32_t now;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(gate) : "memory");
  } while ((now ^ ticket) >> kGateBits == 0);
}

}  // namespace tandem::cuda
