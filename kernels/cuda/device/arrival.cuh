// Counting blocks that have left something for each other in memory.
#pragma once

#include <cuda_runtime.h>

namespace tandem::cuda {

// Adds to a counter and returns what was there. What this thread, and threads before it in a
// barrier, have written can be read by whoever finds the addition counted, and what those before
// have written by this thread: one fence for both where __threadfence() around an atomicAdd() takes
// two.
__device__ __forceinline__ unsigned add_in_order(unsigned* counter, unsigned more) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(counter), "r"(more)
               : "memory");
  return before;
}

}  // namespace tandem::cuda
