#include "tests/kernels/quantized_weight.h"

#include "base/types.h"

namespace tandem::testing {
namespace {

using ops::WeightFormat;

template <class T>
void append(Vector<std::uint8_t>& bytes, T value) {
  const auto* p = reinterpret_cast<const std::uint8_t*>(&value);
  bytes.insert(bytes.end(), p, p + sizeof(T));
}

}  // namespace

Quantized quantize_at_random(WeightFormat format, DType scale_dtype, int outs, int columns,
                             int block_rows, int block_cols, float scale_2) {
  Quantized q;
  const bool fp4 = format == WeightFormat::kNvfp4 || format == WeightFormat::kMxfp4;
  const bool int8 = format == WeightFormat::kInt8Channel || format == WeightFormat::kInt8Group;
  const bool channel = format == WeightFormat::kFp8Channel || format == WeightFormat::kInt8Channel;
  if (channel || format == WeightFormat::kFp8Tensor) block_rows = 1, block_cols = columns;
  const int per_row = (columns + block_cols - 1) / block_cols;
  std::uint32_t state = 12345;
  const auto next = [&] { return state = state * 1664525u + 1013904223u, state >> 16; };
  std::vector<double> scale_values;
  for (int i = 0; i < (outs + block_rows - 1) / block_rows * per_row; ++i) {
    switch (scale_dtype) {
      case DType::kF32:
        append(q.scales, 0.01f * static_cast<float>(1 + next() % 100));
        scale_values.push_back(reinterpret_cast<const float*>(q.scales.data())[i]);
        break;
      case DType::kBF16:
        append(q.scales, to_bf16(0.01f * static_cast<float>(1 + next() % 100)));
        scale_values.push_back(to_float(reinterpret_cast<const bf16*>(q.scales.data())[i]));
        break;
      case DType::kF16:
        append(q.scales, static_cast<std::uint16_t>(0x2c00 + next() % 0x800));
        scale_values.push_back(
            f16_to_float(reinterpret_cast<const std::uint16_t*>(q.scales.data())[i]));
        break;
      case DType::kF8E4M3:
        append(q.scales, static_cast<std::uint8_t>(0x28 + next() % 0x20));
        scale_values.push_back(e4m3_to_float(q.scales[static_cast<std::size_t>(i)]));
        break;
      default:
        append(q.scales, static_cast<std::uint8_t>(120 + next() % 10));
        scale_values.push_back(e8m0_to_float(q.scales[static_cast<std::size_t>(i)]));
    }
  }
  for (int n = 0; n < outs; ++n) {
    for (int k = 0; k < columns; ++k) {
      double code = 0;
      const auto byte = static_cast<std::uint8_t>(next());
      if (fp4) {
        if (k % 2 == 0) q.codes.push_back(byte);
        code = e2m1_to_float((q.codes.back() >> (k % 2 * 4)) & 0xf);
      } else if (int8) {
        q.codes.push_back(byte);
        code = static_cast<std::int8_t>(byte);
      } else {
        q.codes.push_back((byte & 0x7f) == 0x7f ? 0 : byte);  // no NaN
        code = e4m3_to_float(q.codes.back());
      }
      const double scale =
          format == WeightFormat::kFp8Tensor
              ? 1.0
              : scale_values[static_cast<std::size_t>(n / block_rows * per_row + k / block_cols)];
      const bool second = format == WeightFormat::kNvfp4 || format == WeightFormat::kFp8Tensor;
      q.values.push_back(code * scale * (second ? double{scale_2} : 1.0));
    }
  }
  q.weight = {.format = format,
              .out_features = outs,
              .in_features = columns,
              .data = nullptr,
              .scales = nullptr,
              .scale_dtype = scale_dtype,
              .block_rows = block_rows,
              .block_cols = block_cols,
              .scale_2 = scale_2};
  return q;
}

}  // namespace tandem::testing
