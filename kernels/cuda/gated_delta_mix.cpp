#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/gated_delta_mix_kernels.h"
#include "kernels/cuda/gated_delta_mix_plan.h"

namespace tandem::cuda {

void gated_delta_mix(CudaBackend& backend, const ops::GatedDeltaMixArgs& args) {
  if (!mixes_at_once(args)) {
    causal_conv(backend, args.conv);
    gated_delta_rule(backend, args.rule);
    gated_rms_norm(backend, args.norm);
  } else if (args.rule.batch.num_segments > 0) {
    const DeviceLimits& limits = backend.limits();
    const bool by_heads = mixes_by_heads(args, limits.num_processors) &&
                          mix_heads_shared_bytes(args.rule.dtype) <= limits.shared_bytes_per_block;
    (by_heads ? gated_delta_mix_heads : gated_delta_mix_strips)(backend, args);
  }
}

}  // namespace tandem::cuda
