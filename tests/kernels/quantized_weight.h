// Random weights of the quantized formats for the tests of linears, with the values they stand for.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops/linear.h"
#include "tests/kernels/op_check.h"

namespace tandem::testing {

// Codes and scales of every quantized format, and the values they stand for.
struct Quantized {
  ops::LinearWeight weight;
  Vector<std::uint8_t> codes;
  Vector<std::uint8_t> scales;
  std::vector<double> values;  // [outs, columns]
};

// `block_rows`, `block_cols` and `scale_2` where the format has them. The weight's pointers are
// left to the caller.
Quantized quantize_at_random(ops::WeightFormat format, DType scale_dtype, int outs, int columns,
                             int block_rows, int block_cols, float scale_2);

}  // namespace tandem::testing
