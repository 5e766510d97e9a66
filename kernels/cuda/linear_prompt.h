// Linears of prompt rows on Hopper's matrix instructions of four warps (wgmma). A leaf is summed in
// steps of 16 columns in ascending order by the matrix units, under scales of its own where the
// format has them for blocks of columns, and leaves are added as a tree; neither the number of rows
// nor the shape of tiles shows in a row's bits. For cuda/linear.cpp, which asks
// prompt_tiles_serve() whether it serves.
#pragma once

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear_plan.h"

namespace tandem::cuda {

void linear_prompt(const CudaBackend& backend, const ops::LinearArgs& args,
                   const LinearOrder& order);

// Its part for formats whose codes become bf16 on the way to shared memory.
void linear_prompt_quantized(const CudaBackend& backend, const ops::LinearArgs& args,
                             const LinearOrder& order);

}  // namespace tandem::cuda
