// Paged attention of generated rows over FP8 pages.
#include "kernels/cuda/attention_generated.cuh"
#include "kernels/cuda/attention_kernels.h"

namespace tandem::cuda {

void attention_generated_fp8(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                             const AttentionSize& size) {
  attention_generated_over<e4m3>(backend, args, size);
}

}  // namespace tandem::cuda
