#include "kernels/ops/causal_conv.h"

#include "kernels/ops/check.h"
#include "kernels/ops/dispatch.h"

namespace tandem::ops {

bool check_causal_conv(const CausalConvArgs& args) {
  check_batch(args.batch);
  TANDEM_CHECK(args.channels > 0 && args.kernel >= 2 && args.kernel <= kMaxConvKernel &&
                   args.max_round_rows >= 0,
               "{} channels, kernel {}, rounds of {} rows", args.channels, args.kernel,
               args.max_round_rows);
  if (args.batch.num_rows == 0) return false;
  check_float_dtype(args.dtype, "u, window, y");
  check_present(args.batch.segments, "segments");
  check_present(args.batch.pending_rows, "pending_rows");
  check_present(args.u, "u");
  check_present(args.weight, "weight");
  check_present(args.window, "window");
  check_present(args.y, "y");
  TANDEM_CHECK(args.u != args.y, "y aliases u");
  TANDEM_CHECK(args.u_stride >= args.channels, "stride {} for {} channels", args.u_stride,
               args.channels);
  return true;
}

void causal_conv(Backend& backend, const CausalConvArgs& args) {
  if (check_causal_conv(args)) TANDEM_DISPATCH(causal_conv, backend, args);
}

}  // namespace tandem::ops
