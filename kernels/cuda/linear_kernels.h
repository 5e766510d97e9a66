// The families of linear kernels, for cuda/linear.cu to choose from.
#pragma once

#include <span>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear_chain.h"
#include "kernels/cuda/linear_plan.h"

namespace tandem::cuda {

// 8 to 32 rows a block against 16 outputs, near the bandwidth of the weights. Any layout of x.
// Several with the same x, format, order and plan run as one.
void linear_narrow(const CudaBackend& backend, std::span<const ops::LinearArgs> group,
                   const LinearOrder& order, const LinearPlan& plan);
// Up to 16 rows, nearer to it, of what stream_serves() (linear_stream_plan.h): to the bits of
// linear_narrow(). One kernel for a chain.
void linear_stream(const CudaBackend& backend, std::span<const LinearChain::Link> links,
                   const ChainPlan& plan);
// 64 or 128 rows against 128 outputs; BF16 weights, rows of x on multiples of 16 bytes.
void linear_wide(const CudaBackend& backend, const ops::LinearArgs& args, const LinearOrder& order,
                 const LinearPlan& plan);
// Any types, by fp32 multiply-adds.
void linear_plain(const CudaBackend& backend, const ops::LinearArgs& args,
                  const LinearOrder& order);

}  // namespace tandem::cuda
