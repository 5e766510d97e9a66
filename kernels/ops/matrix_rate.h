// Instruments: the rate of matrix products that the vendor's library reaches on a device, to judge
// our own products by. No operator uses that library: it sums in an order of its own.
#pragma once

#include <string>

#include "kernels/backend.h"

namespace tandem::ops {

struct MatrixRate {
  double flops_per_s = 0;  // 0: not measured
  std::string source;      // "cuBLASLt 13.0.2, 8192 x 8192 x 8192", or why there is no rate
};

// Median rate of n x n x n products of BF16 matrices, added in fp32, by the fastest of the
// algorithms that the library proposes. Allocates 3 n^2 BF16 numbers and the library's workspace.
MatrixRate measure_matrix_rate(Backend& backend, int n);

}  // namespace tandem::ops
