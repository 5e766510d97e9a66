// Rounds of a Gated DeltaNet layer in one kernel: convolution, delta rule and gated norm of all
// generated rows, to the bit as causal_conv.cu, gated_delta_recurrent.cu and gated_rms_norm.cu do
// them. Two kernels, which differ in what a block does; gated_delta_mix_plan.h chooses.
#pragma once

#include <cstddef>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/ops/gated_delta_mix.h"

namespace tandem::cuda {

// The work of few sequences is small, so what counts is how often it waits for memory: everything
// that a block needs is asked for at once, as soon as it knows its segment.
void gated_delta_mix_strips(const CudaBackend& backend, const ops::GatedDeltaMixArgs& args);

// That of many moves much memory: states are to be under way while other blocks compute.
void gated_delta_mix_heads(const CudaBackend& backend, const ops::GatedDeltaMixArgs& args);
std::size_t mix_heads_shared_bytes(DType dtype);  // of a block

}  // namespace tandem::cuda
