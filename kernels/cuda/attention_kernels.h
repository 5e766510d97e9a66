// The launches behind paged attention: of plans and arguments, one for each path.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/ops/paged_attention.h"

namespace tandem::cuda {

void attention_generated(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                         const AttentionSize& size);
void attention_generated_fp8(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                             const AttentionSize& size);
void attention_prompt(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                      const AttentionSize& size);
void attention_prompt_fp8(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                          const AttentionSize& size);
void attention_plain(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                     const AttentionSize& size);

}  // namespace tandem::cuda
