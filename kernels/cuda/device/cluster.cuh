// Blocks that run together, a cluster (all chips from Hopper on): a barrier of all their threads,
// and numbers sent to another block's shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/copy_engine.cuh"

namespace tandem::cuda {

// Each thread arrives and later waits, whole warps at once. What it has read or written before it
// arrives comes before what the others do after their wait.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Where something in this block's shared memory lies in that of block `block` of the cluster.
__device__ __forceinline__ uint32_t address_in_block(const void* shared, int block) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(address)
               : "r"(shared_address(shared)), "r"(block));
  return address;
}

// Stores x at `to` and counts its 16 bytes at `barrier`, both addresses in one block. The block
// must be known to have started and must not end before the bytes have come.
__device__ __forceinline__ void send(const float4& x, uint32_t to, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
      : "memory");
}

// As Barrier::wait(), for bytes that other blocks have sent.
__device__ __forceinline__ void wait_for_sent(Barrier& barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace tandem::cuda
