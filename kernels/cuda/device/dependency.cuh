// Overlapping the end of one kernel with the start of the next in a stream (programmatic dependent
// launch, CUDA C++ Programming Guide). A kernel started by launch_overlapping() may begin before
// the one before it has ended: until wait_for_previous_kernel() it must touch nothing but what no
// kernel writes. In a kernel started by launch() both do nothing harmful.
#pragma once

#include <cuda_runtime.h>

namespace tandem::cuda {

// The next kernel may begin as soon as all blocks have come here or ended. It still waits for this
// one to end before it reads its results, so the earlier the better.
__device__ __forceinline__ void allow_next_kernel() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Returns when the kernel before has ended and its results can be seen.
__device__ __forceinline__ void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Brings a line into L2. The address must be valid.
__device__ __forceinline__ void prefetch_line(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

}  // namespace tandem::cuda
