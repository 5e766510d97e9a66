// Addresses within shared memory, as instructions take them, and loads from there.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tandem::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ uint2 load_shared8(uint32_t address) {
  uint2 words;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
               : "=r"(words.x), "=r"(words.y)
               : "r"(address)
               : "memory");
  return words;
}

}  // namespace tandem::cuda
