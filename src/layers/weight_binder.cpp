#include "layers/weight_binder.h"

#include <numeric>
#include <utility>

namespace tandem {
namespace {

std::int64_t kept_rows(const std::vector<RowRange>& rows, std::int64_t all) {
  if (rows.empty()) return all;
  std::int64_t n = 0;
  for (const auto& r : rows) n += r.count();
  return n;
}

}  // namespace

WeightBinder::WeightBinder(PartAllocator& allocator, TensorParallel tensor_parallel,
                           SourceDType source_dtype)
    : allocator_(allocator),
      tensor_parallel_(tensor_parallel),
      source_dtype_(std::move(source_dtype)),
      part_(parts::kWeights) {}

ops::LinearWeight WeightBinder::matrix(const std::string& name, std::int64_t out, std::int64_t in,
                                       std::vector<RowRange> rows, std::optional<ColRange> cols,
                                       std::int64_t padded_rows) {
  const auto source = source_dtype_(name);
  const DType stored = !source || *source == DType::kBF16 ? DType::kBF16 : DType::kF32;
  const std::int64_t n = kept_rows(rows, out);
  const std::int64_t k = cols ? cols->count() : in;
  const std::int64_t allocated_rows = std::max(n, padded_rows);

  void* data =
      allocator_.take(part_, static_cast<std::size_t>(allocated_rows * k) * dtype_bytes(stored));
  requests_.push_back({.name = name,
                       .shape = {out, in},
                       .rows = std::move(rows),
                       .cols = cols,
                       .as = stored,
                       .narrowing = Narrowing::kRefuse,
                       .dst = data,
                       .dst_row_stride = k});
  return {.format = stored == DType::kBF16 ? ops::WeightFormat::kBf16 : ops::WeightFormat::kF32,
          .out_features = n,
          .in_features = k,
          .data = data};
}

const float* WeightBinder::vector_f32(const std::string& name, std::vector<std::int64_t> shape,
                                      std::vector<RowRange> rows) {
  const std::int64_t row_size =
      std::accumulate(shape.begin() + 1, shape.end(), std::int64_t{1}, std::multiplies<>());
  const std::int64_t n = kept_rows(rows, shape.front());
  float* data = allocator_.take_array<float>(part_, n * row_size);
  requests_.push_back({.name = name,
                       .shape = {shape.begin(), shape.end()},
                       .rows = std::move(rows),
                       .cols = std::nullopt,
                       .as = DType::kF32,
                       .narrowing = Narrowing::kRefuse,
                       .dst = data,
                       .dst_row_stride = row_size});
  return data;
}

}  // namespace tandem
