#include "kernels/ops/gated_delta_mix.h"

#include "kernels/ops/check.h"
#include "kernels/ops/dispatch.h"

namespace tandem::ops {
namespace {

bool same_batch(const BatchView& a, const BatchView& b) {
  return a.row_class == b.row_class && a.num_rows == b.num_rows &&
         a.num_segments == b.num_segments && a.segments == b.segments &&
         a.pending_rows == b.pending_rows;
}

}  // namespace

void gated_delta_mix(Backend& backend, const GatedDeltaMixArgs& args) {
  const auto& [conv, rule, norm] = args;
  TANDEM_CHECK(same_batch(conv.batch, rule.batch) && norm.num_rows == rule.batch.num_rows,
               "convolution, rule and norm of different rows");
  TANDEM_CHECK(conv.y == rule.qkv && rule.out == norm.o && conv.dtype == rule.dtype &&
                   norm.dtype == rule.dtype,
               "one operator's outputs are not the next one's inputs");
  TANDEM_CHECK(conv.channels == rule.shape.channels() && norm.num_heads == rule.shape.num_v_heads &&
                   norm.width == rule.shape.v_dim &&
                   conv.max_round_rows == rule.state.max_round_rows,
               "convolution, rule and norm of different shapes");
  const bool any = check_causal_conv(conv);
  if (check_gated_delta_rule(rule) && check_gated_rms_norm(norm) && any) {
    TANDEM_DISPATCH(gated_delta_mix, backend, args);
  }
}

}  // namespace tandem::ops
