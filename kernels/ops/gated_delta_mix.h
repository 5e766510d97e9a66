// What a Gated DeltaNet layer does between its projections in and out: the causal convolution, the
// gated delta rule on its outputs, and the gated norm of the rule's.
#pragma once

#include "kernels/backend.h"
#include "kernels/ops/causal_conv.h"
#include "kernels/ops/gated_delta_rule.h"
#include "kernels/ops/gated_rms_norm.h"

namespace tandem::ops {

// The three operators' arguments, chained: rule.qkv is conv.y, norm.o is rule.out; one batch, one
// dtype, one max_round_rows.
struct GatedDeltaMixArgs {
  CausalConvArgs conv;
  GatedDeltaRuleArgs rule;
  GatedRmsNormArgs norm;  // of the batch's rows and the rule's heads
};

// To the bit what the three do one after the other to the states and windows, and to norm.y in rows
// of segments. A backend may run them as one: what conv.y and rule.out hold afterwards is not
// specified, nor are norm.y's rows that belong to no segment.
void gated_delta_mix(Backend& backend, const GatedDeltaMixArgs& args);

}  // namespace tandem::ops
