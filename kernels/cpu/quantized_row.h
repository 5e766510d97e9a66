// Dequantization of a piece of a weight row to fp32: how the CPU runs every quantized format.
#pragma once

#include <cstdint>

#include "kernels/ops/linear.h"

namespace tandem::cpu {

// out[i] = weight[row][first_column + i] for 0 <= i < count. Layouts of codes and scales:
//   kFp8Block      E4M3 [N, K], scales [ceil(N / block_rows), ceil(K / block_cols)]
//   kFp8Tensor     E4M3 [N, K], scale_2
//   kFp8Channel    E4M3 [N, K], scales [N]
//   kNvfp4         E2M1 [N, K/2] (even column in the low nibble), scales [N, K/block_cols], scale_2
//   kMxfp4         E2M1 [N, K/2], scales [N, K/block_cols]
//   kInt8Channel   int8 [N, K], scales [N]
//   kInt8Group     int8 [N, K], scales [N, K/block_cols]
// A value is code * scale, for NVFP4 code * (scale * scale_2), each product rounded to fp32.
void dequantize_row(const ops::LinearWeight& weight, std::int64_t row, std::int64_t first_column,
                    int count, float* out);

}  // namespace tandem::cpu
