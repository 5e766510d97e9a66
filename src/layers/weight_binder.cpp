#include "layers/weight_binder.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "checkpoint/dequantize.h"

namespace tandem {
namespace {

std::int64_t count_rows(const std::vector<RowRange>& rows) {
  std::int64_t n = 0;
  for (const auto& r : rows) n += r.count();
  return n;
}

ops::WeightFormat kernel_format(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBf16:
      return ops::WeightFormat::kBf16;
    case WeightFormat::kF32:
    case WeightFormat::kF16:
      return ops::WeightFormat::kF32;
    case WeightFormat::kFp8Block:
      return ops::WeightFormat::kFp8Block;
    case WeightFormat::kFp8Tensor:
      return ops::WeightFormat::kFp8Tensor;
    case WeightFormat::kFp8Channel:
      return ops::WeightFormat::kFp8Channel;
    case WeightFormat::kNvfp4:
      return ops::WeightFormat::kNvfp4;
    case WeightFormat::kMxfp4:
      return ops::WeightFormat::kMxfp4;
    case WeightFormat::kInt8Channel:
      return ops::WeightFormat::kInt8Channel;
    case WeightFormat::kInt8Group:
      return ops::WeightFormat::kInt8Group;
  }
  TANDEM_CHECK(false, "format {}", static_cast<int>(format));
}

}  // namespace

WeightBinder::WeightBinder(PartAllocator& allocator, TensorParallel tensor_parallel,
                           const WeightSource& source, BackendKind backend)
    : allocator_(allocator),
      tensor_parallel_(tensor_parallel),
      source_(source),
      backend_(backend),
      part_(parts::kWeights) {}

std::optional<StoredFormat> WeightBinder::kept_format(const std::string& name) const {
  const auto stored = source_.find(name);
  if (!stored || is_plain(stored->format)) return std::nullopt;
  if (!ops::linear_supports(backend_, kernel_format(stored->format))) return std::nullopt;
  return stored;
}

ops::LinearWeight WeightBinder::matrix(const std::string& name, std::int64_t out, std::int64_t in,
                                       std::vector<RowRange> rows, std::optional<ColRange> cols,
                                       std::int64_t padded_rows) {
  TensorRequest request{.name = name, .shape = {out, in}, .rows = std::move(rows), .cols = cols};
  const auto stored = kept_format(name);
  if (!stored) return plain(std::move(request), padded_rows);
  return quantized(*stored, std::move(request), padded_rows);
}

ops::LinearWeight WeightBinder::table(const std::string& name, std::int64_t out, std::int64_t in,
                                      std::vector<RowRange> rows, std::int64_t padded_rows) {
  return plain({.name = name, .shape = {out, in}, .rows = std::move(rows)}, padded_rows);
}

ops::LinearWeight WeightBinder::plain(TensorRequest request, std::int64_t padded_rows) {
  const auto stored = source_.find(request.name);
  if (stored && !is_plain(stored->format)) ++num_widened_[stored->format];
  const bool bf16 = !stored || stored->format == WeightFormat::kBf16;
  const std::int64_t n = count_rows(kept_row_ranges(request));
  const std::int64_t k = kept_col_range(request).count();
  request.as = bf16 ? DType::kBF16 : DType::kF32;
  request.dst = allocator_.take(
      part_, static_cast<std::size_t>(std::max(n, padded_rows) * k) * dtype_bytes(request.as));
  request.dst_row_stride = k;
  requests_.push_back(std::move(request));
  return {.format = bf16 ? ops::WeightFormat::kBf16 : ops::WeightFormat::kF32,
          .out_features = n,
          .in_features = k,
          .data = requests_.back().dst};
}

ops::LinearWeight WeightBinder::quantized(const StoredFormat& stored, TensorRequest request,
                                          std::int64_t padded_rows) {
  const std::vector<RowRange> rows = kept_row_ranges(request);
  const ColRange cols = kept_col_range(request);
  const std::int64_t n = count_rows(rows);
  const std::int64_t in = request.shape.back();

  QuantizedTarget target{.format = stored.format,
                         .scale_dtype = stored.scale_dtype,
                         .block_rows = stored.block_rows,
                         .block_cols = stored.block_cols};
  request.dst_row_stride = cols.count();
  request.quantized = target;
  request.dst = allocator_.take(
      part_, static_cast<std::size_t>(std::max(n, padded_rows) * memory_row_bytes(request)));
  ScaleSlice slice;
  if (target.has_scales()) {
    slice = slice_scales(stored.block_rows, stored.block_cols, in, rows, cols);
    target.scales = allocator_.take(
        part_, slice.rows.size() * slice.cols.size() * dtype_bytes(stored.scale_dtype));
    request.quantized = target;
  }
  // Not in a planning pass: the factor is in the file, and only the headers are to be read then.
  const float factor = request.dst == nullptr ? 1.0f : source_.factor(request.name, in);
  requests_.push_back(std::move(request));
  return {.format = kernel_format(stored.format),
          .out_features = n,
          .in_features = cols.count(),
          .data = requests_.back().dst,
          .scales = target.scales,
          .scale_dtype = stored.scale_dtype,
          .block_rows = static_cast<int>(slice.block_rows),
          .block_cols = static_cast<int>(slice.block_cols),
          .scale_2 = factor};
}

const float* WeightBinder::vector_f32(const std::string& name, std::vector<std::int64_t> shape,
                                      std::vector<RowRange> rows) {
  const std::int64_t row_size =
      std::accumulate(shape.begin() + 1, shape.end(), std::int64_t{1}, std::multiplies<>());
  TensorRequest request{
      .name = name, .shape = {shape.begin(), shape.end()}, .rows = std::move(rows)};
  float* data =
      allocator_.take_array<float>(part_, count_rows(kept_row_ranges(request)) * row_size);
  request.as = DType::kF32;
  request.dst = data;
  request.dst_row_stride = row_size;
  requests_.push_back(std::move(request));
  return data;
}

std::int64_t WeightBinder::scale_columns(const std::string& name) const {
  const auto stored = kept_format(name);
  if (!stored) return 1;
  switch (stored->format) {
    case WeightFormat::kFp8Block:
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4:
    case WeightFormat::kInt8Group:
      return stored->block_cols;
    default:
      return 1;  // one scale a row or a weight
  }
}

std::string WeightBinder::widened() const {
  std::string text;
  for (const auto& [format, count] : num_widened_) {
    text += fmt::format("{}{} of format {}", text.empty() ? "" : ", ", count, format_name(format));
  }
  return text;
}

}  // namespace tandem
