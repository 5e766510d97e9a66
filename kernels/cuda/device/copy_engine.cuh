// Barriers in shared memory, and tiles that the copy engine brings there. All chips from Hopper on
// have both.
//
// A tile has rows of 128 bytes, 64 bf16, and begins on a multiple of 1024 bytes. Its 16-byte pieces
// are swizzled: piece c of row r lies in place c ^ (r % 8) of the row, so that eight rows of one
// column of pieces lie in different banks.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/shared_address.cuh"

namespace tandem::cuda {

inline constexpr int kTileColumns = 64;
inline constexpr int kTileRowBytes = 128;
inline constexpr int kTileAlignment = 1024;

// Byte of a tile at which a 16-byte piece of a row begins.
__device__ __forceinline__ int swizzled(int row, int piece) {
  return row * kTileRowBytes + (piece ^ row % 8) * 16;
}

// A barrier completes a phase when all `arrivals` have come and all bytes that were announced are
// there. Phases alternate in parity; waiting for the phase before the first one returns at once.
struct Barrier {
  uint64_t state;

  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)),
                 "r"(arrivals)
                 : "memory");
  }
  __device__ __forceinline__ void arrive(int arrivals = 1) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
                 "r"(arrivals)
                 : "memory");
  }
  __device__ __forceinline__ void arrive_and_expect(int bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
        "r"(bytes)
        : "memory");
  }
  __device__ __forceinline__ void wait(uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }
};

// Makes freshly initialised barriers known to the copy engine; a __syncthreads() has to follow.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// What this thread has stored to shared memory becomes visible to matrix products and copies that
// are started after a barrier.
__device__ __forceinline__ void publish_stores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// What this thread has written to global memory, or has been told of, becomes visible to copies
// that are started after a barrier.
__device__ __forceinline__ void publish_to_copies() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// For copies of what is read once and not soon again: it is the first to leave the second-level
// cache, so that it displaces nothing else there, neither code nor arguments.
__device__ __forceinline__ uint64_t read_once_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Of what all blocks read: the last to leave.
__device__ __forceinline__ uint64_t read_by_all_policy() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Bytes side by side, a multiple of 16, from and to addresses that are.
__device__ __forceinline__ void copy_bytes(const void* from, int bytes, void* to, Barrier& barrier,
                                           uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier)), "l"(policy)
      : "memory");
}

// The box of `map` that begins at (column, row); what lies outside the matrix arrives as zeros, and
// counts as bytes all the same.
__device__ __forceinline__ void copy_tile(const CUtensorMap& map, int column, int row, void* tile,
                                          Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];" ::"r"(shared_address(tile)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(shared_address(&barrier))
      : "memory");
}

__device__ __forceinline__ void copy_tile(const CUtensorMap& map, int column, int row, void* tile,
                                          Barrier& barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(tile)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(column), "r"(row), "r"(shared_address(&barrier)),
      "l"(policy)
      : "memory");
}

// The box of a tiles_map() that begins with tile `tile` of row 0.
__device__ __forceinline__ void copy_tiles(const CUtensorMap& map, int tile, void* to,
                                           Barrier& barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(0), "r"(tile), "r"(shared_address(&barrier)),
      "l"(policy)
      : "memory");
}

__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
}

}  // namespace tandem::cuda
