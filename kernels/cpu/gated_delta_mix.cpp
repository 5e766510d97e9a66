// A Gated DeltaNet layer's operators one after the other: on a CPU a launch costs little, and each
// has its own best split over threads.
#include "kernels/cpu/cpu_ops.h"

namespace tandem::cpu {

void gated_delta_mix(CpuBackend& backend, const ops::GatedDeltaMixArgs& args) {
  causal_conv(backend, args.conv);
  gated_delta_rule(backend, args.rule);
  gated_rms_norm(backend, args.norm);
}

}  // namespace tandem::cpu
