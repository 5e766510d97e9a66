#include "kernels/ops/rms_norm.h"

#include "kernels/ops/check.h"
#include "kernels/ops/dispatch.h"

namespace tandem::ops {

void rms_norm(Backend& backend, const RmsNormArgs& args) {
  TANDEM_CHECK(args.num_rows >= 0 && args.width > 0, "{} rows of {}", args.num_rows, args.width);
  if (args.num_rows == 0) return;
  check_float_dtype(args.x_dtype, "x");
  check_float_dtype(args.y_dtype, "y");
  check_present(args.x, "x");
  check_present(args.weight, "weight");
  check_present(args.y, "y");
  TANDEM_CHECK(args.x_stride >= args.width && args.y_stride >= args.width,
               "strides {} and {} for width {}", args.x_stride, args.y_stride, args.width);
  TANDEM_CHECK(args.x != args.y || (args.x_stride == args.y_stride && args.x_dtype == args.y_dtype),
               "y aliases x with another layout");
  TANDEM_DISPATCH(rms_norm, backend, args);
}

void residual_rms_norm(Backend& backend, const ResidualRmsNormArgs& args) {
  TANDEM_CHECK(args.num_rows >= 0 && args.width > 0, "{} rows of {}", args.num_rows, args.width);
  if (args.num_rows == 0) return;
  check_float_dtype(args.residual_dtype, "residual");
  check_present(args.residual, "residual");
  check_present(args.delta, "delta");
  check_present(args.weight, "weight");
  check_present(args.y, "y");
  TANDEM_CHECK(args.y != args.residual && args.y != args.delta, "y aliases an input");
  const void* factors = args.row_factors;
  TANDEM_CHECK(factors == nullptr || (factors != args.delta && factors != args.weight &&
                                      factors != args.residual && factors != args.y),
               "row_factors alias another array");
  TANDEM_DISPATCH(residual_rms_norm, backend, args);
}

}  // namespace tandem::ops
