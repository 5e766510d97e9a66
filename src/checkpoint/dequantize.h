// The reference decoder of every weight format, in plain C++: what the optimized kernels are tested
// against, and how weights in a format without a kernel are widened while loading.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/quant_format.h"

namespace tandem {

// The raw bytes of one weight. Nothing is owned; `codes` and `scales` need no alignment.
//   W[n, k] = decode(code[n, k]) * scale[n / block_rows, k / block_cols] * global_scale
// with the block row counted inside each matrix of a stack.
struct QuantizedWeight {
  std::string name;  // for messages
  WeightFormat format = WeightFormat::kBf16;
  std::int64_t rows = 0;  // all matrices together
  std::int64_t cols = 0;
  std::int64_t matrix_rows = 0;
  std::int64_t block_rows = 1;
  std::int64_t block_cols = 1;
  const std::byte* codes = nullptr;  // [rows, cols] elements, 4-bit formats [rows, cols / 2] bytes
  const std::byte* scales =
      nullptr;  // [num_matrices * ceil(matrix_rows/block_rows), ceil(cols/block_cols)]
  DType scale_dtype = DType::kF32;  // F32, BF16, F16, E4M3 (NVFP4) or E8M0
  float global_scale = 1.0f;        // multiply convention
};

// Part of one row: what a reader holds that never has the whole weight in memory.
struct CodeRow {
  const std::byte* codes = nullptr;  // from column first_col on (even in 4-bit formats)
  std::int64_t first_col = 0;
  const std::byte* scales = nullptr;  // [num_scale_cols], the whole scale row
};

std::int64_t code_row_bytes(WeightFormat format, std::int64_t cols);
std::int64_t num_scale_rows(const QuantizedWeight& w);
std::int64_t num_scale_cols(const QuantizedWeight& w);
// Which row of `scales` holds for row n.
std::int64_t scale_row_of(const QuantizedWeight& w, std::int64_t n);
// Shape and types of a layout; the pointers are left null and the second-level scale 1.
QuantizedWeight weight_without_data(const WeightLayout& layout);
// The layout's second-level scale in the multiply convention; 1 if it has none.
float read_global_scale(const Checkpoint& checkpoint, const WeightLayout& layout);
// The one factor of a whole weight: its second-level scale, or the scale of FP8 per tensor; 1
// otherwise. Throws Error{kConfiguration} if it is not usable (see scan_weight).
float read_weight_factor(const Checkpoint& checkpoint, const WeightLayout& layout);
// All elements of a small F32, BF16 or F16 tensor.
std::vector<float> read_scale_tensor(const Checkpoint& checkpoint, const std::string& name);

// out[(n - row_begin) * cols + k] = W[n, k] for row_begin <= n < row_end.
void dequantize_rows(const QuantizedWeight& w, std::int64_t row_begin, std::int64_t row_end,
                     float* out);
// out[k - col_begin] = W[n, k] of the row that `row` holds, for col_begin <= k < col_end. Reads
// format, block_cols, scale_dtype and global_scale of `w`, not its pointers.
void dequantize_row(const QuantizedWeight& w, const CodeRow& row, std::int64_t col_begin,
                    std::int64_t col_end, float* out);

// NaN codes, and scales that are NaN, infinite, negative or zero, each named with the tensor and
// its place. Empty if the weight is sound.
std::vector<std::string> scan_weight(const QuantizedWeight& w);
// Where scales lie among those of their whole weight.
struct ScalePlace {
  std::int64_t row = 0;
  std::int64_t col = 0;
};
// The same for scales [num_rows, num_scale_cols(w)], the first of which is `first`, and the global
// scale.
std::vector<std::string> scan_scales(const QuantizedWeight& w, const std::byte* scales,
                                     ScalePlace first, std::int64_t num_rows);

// One weight read whole into memory, its second-level scale in the multiply convention.
struct LoadedWeight {
  QuantizedWeight view;  // points into the vectors below
  std::vector<std::byte> codes;
  std::vector<std::byte> scales;
};
// Throws Error{kConfiguration} if a scale is not usable (see scan_weight).
LoadedWeight load_weight(const Checkpoint& checkpoint, const WeightLayout& layout);

}  // namespace tandem
