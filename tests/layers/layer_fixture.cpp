#include "tests/layers/layer_fixture.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/types.h"

namespace tandem::testing {

float weight_value(const std::string& name, std::int64_t index, float scale) {
  const std::uint64_t bits = xxh3_64(&index, sizeof index, xxh3_64(name));
  return to_float(to_bf16(scale * (static_cast<float>(bits >> 40) * 0x1p-23f - 1.0f)));
}

std::vector<float> whole_weight(const std::string& name, std::int64_t count, float scale) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < count; ++i) out.push_back(weight_value(name, i, scale));
  return out;
}

void fill_weights(const std::vector<TensorRequest>& requests, float scale) {
  for (const auto& r : requests) {
    TANDEM_CHECK(r.dst != nullptr && (r.as == DType::kBF16 || r.as == DType::kF32));
    const std::int64_t width = shape_numel(r.shape) / r.shape.front();
    const auto rows = r.rows.empty() ? std::vector<RowRange>{{0, r.shape.front()}} : r.rows;
    const ColRange cols = r.cols.value_or(ColRange{0, width});
    std::int64_t out_row = 0;
    for (const auto& range : rows) {
      for (std::int64_t row = range.begin; row < range.end; ++row, ++out_row) {
        for (std::int64_t col = cols.begin; col < cols.end; ++col) {
          const std::int64_t at = out_row * r.dst_row_stride + col - cols.begin;
          const float value = weight_value(r.name, row * width + col, scale);
          if (r.as == DType::kBF16) {
            static_cast<bf16*>(r.dst)[at] = to_bf16(value);
          } else {
            static_cast<float*>(r.dst)[at] = value;
          }
        }
      }
    }
  }
}

}  // namespace tandem::testing
