#include "kernels/cpu/quantized_row.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/types.h"

namespace tandem::cpu {
namespace {

std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table{};
  for (std::size_t code = 0; code < table.size(); ++code) {
    table[code] = e4m3_to_float(static_cast<std::uint8_t>(code));
  }
  return table;
}

float scale_at(const void* scales, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(scales)[i];
    case DType::kBF16:
      return to_float(static_cast<const bf16*>(scales)[i]);
    case DType::kF16:
      return f16_to_float(static_cast<const std::uint16_t*>(scales)[i]);
    case DType::kF8E4M3:
      return e4m3_to_float(static_cast<const std::uint8_t*>(scales)[i]);
    default:
      return e8m0_to_float(static_cast<const std::uint8_t*>(scales)[i]);
  }
}

// The columns that one scale covers, and where the scales of this row begin.
struct ScaleRow {
  std::int64_t first = 0;
  std::int64_t columns = 0;
};

ScaleRow scale_row(const ops::LinearWeight& w, std::int64_t row) {
  switch (w.format) {
    case ops::WeightFormat::kFp8Channel:
    case ops::WeightFormat::kInt8Channel:
      return {row, w.in_features};
    default: {
      const std::int64_t per_row = (w.in_features + w.block_cols - 1) / w.block_cols;
      return {row / w.block_rows * per_row, w.block_cols};
    }
  }
}

// Calls piece(begin, end, scale) for the runs of columns under one scale.
template <class Piece>
void for_each_scale(const ops::LinearWeight& w, std::int64_t row, std::int64_t begin,
                    std::int64_t end, const Piece& piece) {
  const ScaleRow scales = scale_row(w, row);
  for (std::int64_t k = begin; k < end;) {
    const std::int64_t block = k / scales.columns;
    const std::int64_t stop = std::min(end, (block + 1) * scales.columns);
    piece(k, stop, scale_at(w.scales, w.scale_dtype, scales.first + block));
    k = stop;
  }
}

void dequantize_fp4(const ops::LinearWeight& w, std::int64_t row, std::int64_t begin,
                    std::int64_t end, float* out) {
  const auto* codes = static_cast<const std::uint8_t*>(w.data) + row * (w.in_features / 2);
  const float scale_2 = w.format == ops::WeightFormat::kNvfp4 ? w.scale_2 : 1.0f;
  for_each_scale(w, row, begin, end, [&](std::int64_t k, std::int64_t stop, float scale) {
    const float factor = scale * scale_2;
    for (; k < stop; ++k) {
      const auto nibble = static_cast<std::uint8_t>(codes[k / 2] >> (k % 2 == 0 ? 0 : 4));
      out[k - begin] = e2m1_to_float(nibble & 0xf) * factor;
    }
  });
}

void dequantize_int8(const ops::LinearWeight& w, std::int64_t row, std::int64_t begin,
                     std::int64_t end, float* out) {
  const auto* codes = static_cast<const std::int8_t*>(w.data) + row * w.in_features;
  for_each_scale(w, row, begin, end, [&](std::int64_t k, std::int64_t stop, float scale) {
    for (; k < stop; ++k) out[k - begin] = static_cast<float>(codes[k]) * scale;
  });
}

void dequantize_fp8(const ops::LinearWeight& w, std::int64_t row, std::int64_t begin,
                    std::int64_t end, float* out) {
  static const std::array<float, 256> value = make_e4m3_table();
  const auto* codes = static_cast<const std::uint8_t*>(w.data) + row * w.in_features;
  if (w.format == ops::WeightFormat::kFp8Tensor) {
    for (std::int64_t k = begin; k < end; ++k) out[k - begin] = value[codes[k]] * w.scale_2;
    return;
  }
  for_each_scale(w, row, begin, end, [&](std::int64_t k, std::int64_t stop, float scale) {
    for (; k < stop; ++k) out[k - begin] = value[codes[k]] * scale;
  });
}

}  // namespace

void dequantize_row(const ops::LinearWeight& weight, std::int64_t row, std::int64_t first_column,
                    int count, float* out) {
  const std::int64_t end = first_column + count;
  switch (weight.format) {
    case ops::WeightFormat::kNvfp4:
    case ops::WeightFormat::kMxfp4:
      return dequantize_fp4(weight, row, first_column, end, out);
    case ops::WeightFormat::kInt8Channel:
    case ops::WeightFormat::kInt8Group:
      return dequantize_int8(weight, row, first_column, end, out);
    case ops::WeightFormat::kFp8Block:
    case ops::WeightFormat::kFp8Tensor:
    case ops::WeightFormat::kFp8Channel:
      return dequantize_fp8(weight, row, first_column, end, out);
    case ops::WeightFormat::kBf16:
    case ops::WeightFormat::kF32:
      TANDEM_CHECK(false, "not a quantized format");
  }
}

}  // namespace tandem::cpu
