// The bf16 matrix instruction, and the arrangement of its operands that all linears share.
//
// m16n8k16 multiplies A [16, 16] by B [16, 8]. Lane (g, t) = (lane / 4, lane % 4) holds of A rows g
// and g + 8, of B column g, and of each the k indices 2t, 2t+1, 2t+8, 2t+9. Which column of the
// weight is which k does not matter as long as A and B agree, so a step of 32 columns gives lane t
// the neighbours 8t .. 8t+7 - one 16-byte load of a bf16 row - and two instructions take the first
// and the second four of them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/shared_address.cuh"

namespace tandem::cuda {

// Eight neighbouring bf16 columns of one row: what a lane brings to a step.
struct Columns8 {
  uint32_t pair[4];
};

// sums[0..1]: row g, columns 2t, 2t+1 of the product; sums[2..3]: row g + 8.
__device__ __forceinline__ void mma_m16n8k16(float (&sums)[4], uint32_t a0, uint32_t a1,
                                             uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  // Not volatile: the compiler may move loads across, and does.
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// One step of 32 columns: 16 rows of A (g from `low`, g + 8 from `high`) times 8 columns of B.
__device__ __forceinline__ void mma_step(float (&sums)[4], const Columns8& low,
                                         const Columns8& high, const Columns8& b) {
  mma_m16n8k16(sums, low.pair[0], high.pair[0], low.pair[1], high.pair[1], b.pair[0], b.pair[1]);
  mma_m16n8k16(sums, low.pair[2], high.pair[2], low.pair[3], high.pair[3], b.pair[2], b.pair[3]);
}

// Copies 16 bytes to a shared address in the background, or zeros when `valid` is false.
__device__ __forceinline__ void copy_async16(uint32_t shared, const void* global, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_async16(void* shared, const void* global, bool valid) {
  copy_async16(shared_address(shared), global, valid);
}

// The same for four bytes, which go through the first-level cache.
__device__ __forceinline__ void copy_async4(void* shared, const void* global, bool valid) {
  const int bytes = valid ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void commit_async() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of the latest groups are under way.
template <int kPending>
__device__ __forceinline__ void wait_async() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace tandem::cuda
