// Paged attention of generated rows over BF16 pages.
#include "kernels/cuda/attention_generated.cuh"

#include "kernels/cuda/attention_kernels.h"

namespace tandem::cuda {

void attention_generated(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                         const AttentionSize& size) {
  attention_generated_over<bf16>(backend, args, size);
}

}  // namespace tandem::cuda
