#include "kernels/ops/elementwise.h"

#include "kernels/ops/check.h"
#include "kernels/ops/dispatch.h"

namespace tandem::ops {

void silu_mul(Backend& backend, const SiluMulArgs& args) {
  TANDEM_CHECK(args.num_rows >= 0 && args.width >= 0, "{} rows of {}", args.num_rows, args.width);
  if (args.num_rows == 0 || args.width == 0) return;
  check_float_dtype(args.dtype, "gate, up, y");
  check_present(args.gate, "gate");
  check_present(args.up, "up");
  check_present(args.y, "y");
  TANDEM_DISPATCH(silu_mul, backend, args);
}

void gather_rows(Backend& backend, const GatherRowsArgs& args) {
  TANDEM_CHECK(args.num_rows >= 0 && args.row_bytes >= 0, "{} rows of {} bytes", args.num_rows,
               args.row_bytes);
  if (args.num_rows == 0 || args.row_bytes == 0) return;
  check_present(args.x, "x");
  check_present(args.rows, "rows");
  check_present(args.y, "y");
  TANDEM_CHECK(args.x != args.y, "y aliases x");
  TANDEM_CHECK(args.y_stride_bytes >= args.row_bytes, "stride of {} for rows of {} bytes",
               args.y_stride_bytes, args.row_bytes);
  TANDEM_DISPATCH(gather_rows, backend, args);
}

void scatter_rows(Backend& backend, const ScatterRowsArgs& args) {
  TANDEM_CHECK(args.num_rows >= 0 && args.row_bytes >= 0, "{} rows of {} bytes", args.num_rows,
               args.row_bytes);
  if (args.num_rows == 0 || args.row_bytes == 0) return;
  check_present(args.x, "x");
  check_present(args.rows, "rows");
  check_present(args.y, "y");
  TANDEM_CHECK(args.x != args.y, "y aliases x");
  TANDEM_DISPATCH(scatter_rows, backend, args);
}

void cast(Backend& backend, const CastArgs& args) {
  TANDEM_CHECK(args.count >= 0, "{} elements", args.count);
  if (args.count == 0) return;
  check_float_dtype(args.y_dtype, "y");
  check_present(args.x, "x");
  check_present(args.y, "y");
  TANDEM_DISPATCH(cast, backend, args);
}

void add(Backend& backend, const AddArgs& args) {
  TANDEM_CHECK(args.count >= 0, "{} elements", args.count);
  if (args.count == 0) return;
  check_present(args.x, "x");
  check_present(args.y, "y");
  TANDEM_CHECK(args.x != args.y, "y aliases x");
  TANDEM_DISPATCH(add, backend, args);
}

}  // namespace tandem::ops
