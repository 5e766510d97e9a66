#include "engine/dummy_weights.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/hash.h"
#include "base/types.h"

namespace tandem {
namespace {

// splitmix64's finalizer: one multiply-xor chain an element keeps filling 50 GB a matter of memory
// bandwidth.
std::uint64_t mix(std::uint64_t v) {
  v += 0x9E3779B97F4A7C15ull;
  v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9ull;
  v = (v ^ (v >> 27)) * 0x94D049BB133111EBull;
  return v ^ (v >> 31);
}

// Uniform in [low, high): the ranges keep activations of order one through any depth.
struct Range {
  float low = 0;
  float high = 0;
};

bool ends_with(const std::string& text, const std::string& tail) {
  return text.size() >= tail.size() &&
         text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

Range range_of(const TensorRequest& request) {
  if (ends_with(request.name, "linear_attn.norm.weight")) return {0.9f, 1.1f};  // plain weight
  if (ends_with(request.name, "norm.weight") || request.name.find("_norm") != std::string::npos) {
    return {-0.1f, 0.1f};  // zero-centred
  }
  if (ends_with(request.name, "A_log")) return {0.0f, 2.0f};
  if (ends_with(request.name, "dt_bias")) return {-2.0f, 1.0f};
  const auto fan_in = std::accumulate(request.shape.begin() + 1, request.shape.end(),
                                      std::int64_t{1}, std::multiplies<>());
  const float bound = std::sqrt(3.0f / static_cast<float>(std::max<std::int64_t>(1, fan_in)));
  return {-bound, bound};
}

// Bytes filled before they are stored: bounds the staging memory.
constexpr std::int64_t kChunkBytes = std::int64_t{16} << 20;

void fill_row(const TensorRequest& request, std::uint64_t seed, Range range, std::int64_t row,
              std::int64_t all_cols, ColRange cols, std::byte* out) {
  for (std::int64_t col = cols.begin; col < cols.end; ++col) {
    const std::uint64_t bits = mix(seed ^ static_cast<std::uint64_t>(row * all_cols + col));
    const float unit = static_cast<float>(bits >> 40) * 0x1.0p-24f;
    const float value = range.low + unit * (range.high - range.low);
    const std::int64_t i = col - cols.begin;
    if (request.as == DType::kBF16) {
      reinterpret_cast<bf16*>(out)[i] = to_bf16(value);
    } else {
      reinterpret_cast<float*>(out)[i] = value;
    }
  }
}

void fill(const TensorRequest& request, std::vector<std::byte>& staging,
          const std::function<void(void*, const void*, std::size_t)>& store) {
  const std::uint64_t seed = xxh3_64(request.name);
  const Range range = range_of(request);
  const std::int64_t all_cols = std::accumulate(request.shape.begin() + 1, request.shape.end(),
                                                std::int64_t{1}, std::multiplies<>());
  const ColRange cols = request.cols.value_or(ColRange{0, all_cols});
  std::vector<RowRange> ranges = request.rows;
  if (ranges.empty()) ranges.push_back({0, request.shape.front()});
  const std::int64_t row_bytes = cols.count() * static_cast<std::int64_t>(dtype_bytes(request.as));
  TANDEM_CHECK(request.dst_row_stride == cols.count(), "{}: rows must be packed", request.name);

  auto* dst = static_cast<std::byte*>(request.dst);
  const std::int64_t rows_at_once =
      std::max<std::int64_t>(1, kChunkBytes / std::max<std::int64_t>(1, row_bytes));
  for (const auto& range_of_rows : ranges) {
    for (std::int64_t first = range_of_rows.begin; first < range_of_rows.end;
         first += rows_at_once) {
      const std::int64_t count = std::min(rows_at_once, range_of_rows.end - first);
      staging.resize(static_cast<std::size_t>(count * row_bytes));
#pragma omp parallel for schedule(static)
      for (std::int64_t i = 0; i < count; ++i) {
        fill_row(request, seed, range, first + i, all_cols, cols, staging.data() + i * row_bytes);
      }
      store(dst, staging.data(), staging.size());
      dst += staging.size();
    }
  }
}

}  // namespace

void fill_dummy_weights(const std::vector<TensorRequest>& requests,
                        const std::function<void(void*, const void*, std::size_t)>& store) {
  std::vector<std::byte> staging;
  for (const auto& request : requests) fill(request, staging, store);
}

}  // namespace tandem
