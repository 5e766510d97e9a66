#include "kernels/ops/gated_rms_norm.h"

#include "kernels/ops/check.h"
#include "kernels/ops/dispatch.h"

namespace tandem::ops {

bool check_gated_rms_norm(const GatedRmsNormArgs& args) {
  TANDEM_CHECK(args.num_rows >= 0 && args.num_heads > 0 && args.width > 0,
               "{} rows, {} heads of {}", args.num_rows, args.num_heads, args.width);
  if (args.num_rows == 0) return false;
  check_float_dtype(args.dtype, "z, y");
  check_present(args.o, "o");
  check_present(args.z, "z");
  check_present(args.weight, "weight");
  check_present(args.y, "y");
  return true;
}

void gated_rms_norm(Backend& backend, const GatedRmsNormArgs& args) {
  if (check_gated_rms_norm(args)) TANDEM_DISPATCH(gated_rms_norm, backend, args);
}

}  // namespace tandem::ops
