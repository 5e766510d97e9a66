#include "kernels/ops/matrix_rate.h"

#include "kernels/ops/dispatch.h"

namespace tandem::ops {

MatrixRate measure_matrix_rate(Backend& backend, int n) {
  TANDEM_CHECK(n > 0 && n % 16 == 0, "{} rows", n);
  TANDEM_DISPATCH(measure_matrix_rate, backend, n);
}

}  // namespace tandem::ops
