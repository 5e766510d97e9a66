#include "checkpoint/dequantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "checkpoint/read_only_file.h"

namespace tandem {
namespace {

constexpr std::size_t kMaxFaults = 5;  // of one weight; one bad block repeats itself

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

bool is_four_bit(WeightFormat f) { return f == WeightFormat::kNvfp4 || f == WeightFormat::kMxfp4; }

std::int64_t code_bytes(WeightFormat format) {
  if (format == WeightFormat::kF32) return 4;
  return format == WeightFormat::kBf16 || format == WeightFormat::kF16 ? 2 : 1;
}

template <typename T>
T read_at(const std::byte* base, std::int64_t index) {
  T value;
  std::memcpy(&value, base + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

float read_scale(const std::byte* scales, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return read_at<float>(scales, index);
    case DType::kBF16:
      return to_float(read_at<bf16>(scales, index));
    case DType::kF16:
      return f16_to_float(read_at<std::uint16_t>(scales, index));
    case DType::kF8E4M3:
      return e4m3_to_float(read_at<std::uint8_t>(scales, index));
    case DType::kF8E8M0:
      return e8m0_to_float(read_at<std::uint8_t>(scales, index));
    default:
      break;
  }
  TANDEM_CHECK(false, "{} is no scale type", dtype_name(dtype));
}

// Element k of a row whose codes start at `row`.
float decode(WeightFormat format, const std::byte* row, std::int64_t k) {
  switch (format) {
    case WeightFormat::kBf16:
      return to_float(read_at<bf16>(row, k));
    case WeightFormat::kF32:
      return read_at<float>(row, k);
    case WeightFormat::kF16:
      return f16_to_float(read_at<std::uint16_t>(row, k));
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Tensor:
    case WeightFormat::kFp8Channel:
      return e4m3_to_float(read_at<std::uint8_t>(row, k));
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4: {
      // Even columns sit in the low nibble.
      const auto pair = read_at<std::uint8_t>(row, k / 2);
      return e2m1_to_float(k % 2 == 0 ? pair & 0x0fu : pair >> 4);
    }
    case WeightFormat::kInt8Channel:
    case WeightFormat::kInt8Group:
      return static_cast<float>(read_at<std::int8_t>(row, k));
  }
  TANDEM_CHECK(false, "format {}", static_cast<int>(format));
}

// Plain elements [begin, end); one loop a type, as whole checkpoints pass through here.
void widen(WeightFormat format, const std::byte* row, std::int64_t begin, std::int64_t end,
           float* out) {
  if (format == WeightFormat::kF32) {
    std::memcpy(out, row + begin * 4, static_cast<std::size_t>(end - begin) * sizeof(float));
  } else if (format == WeightFormat::kBf16) {
    for (std::int64_t k = begin; k < end; ++k) *out++ = to_float(read_at<bf16>(row, k));
  } else {
    for (std::int64_t k = begin; k < end; ++k)
      *out++ = f16_to_float(read_at<std::uint16_t>(row, k));
  }
}

std::vector<std::byte> read_tensor(const Checkpoint& checkpoint, const std::string& name) {
  const TensorEntry* entry = checkpoint.find(name);
  TANDEM_CHECK(entry != nullptr, "{}", name);
  std::vector<std::byte> bytes(entry->bytes);
  const ReadOnlyFile file(checkpoint.file_path(entry->file));
  file.read_exact(bytes.data(), bytes.size(), entry->begin);
  return bytes;
}

bool is_usable_scale(float scale) { return std::isfinite(scale) && scale > 0; }

}  // namespace

std::int64_t code_row_bytes(WeightFormat format, std::int64_t cols) {
  return is_four_bit(format) ? cols / 2 : cols * code_bytes(format);
}

std::int64_t num_scale_rows(const QuantizedWeight& w) {
  return w.rows / w.matrix_rows * ceil_div(w.matrix_rows, w.block_rows);
}

std::int64_t num_scale_cols(const QuantizedWeight& w) { return ceil_div(w.cols, w.block_cols); }

std::int64_t scale_row_of(const QuantizedWeight& w, std::int64_t n) {
  return n / w.matrix_rows * ceil_div(w.matrix_rows, w.block_rows) +
         n % w.matrix_rows / w.block_rows;
}

QuantizedWeight weight_without_data(const WeightLayout& layout) {
  QuantizedWeight w;
  w.name = layout.weight;
  w.format = layout.format;
  w.rows = layout.rows;
  w.cols = layout.cols;
  w.matrix_rows = layout.matrix_rows;
  w.block_rows = layout.block_rows;
  w.block_cols = layout.block_cols;
  w.scale_dtype = layout.scale_dtype;
  return w;
}

void dequantize_row(const QuantizedWeight& w, const CodeRow& row, std::int64_t col_begin,
                    std::int64_t col_end, float* out) {
  if (is_plain(w.format)) {
    widen(w.format, row.codes, col_begin - row.first_col, col_end - row.first_col, out);
    return;
  }
  for (std::int64_t k = col_begin; k < col_end;) {
    const std::int64_t block = k / w.block_cols;
    const std::int64_t block_end = std::min(col_end, (block + 1) * w.block_cols);
    const float scale = read_scale(row.scales, w.scale_dtype, block);
    for (; k < block_end; ++k) {
      // The block scale first: its product with a 4-bit code is exact, so that only the
      // second-level scale rounds.
      *out++ = decode(w.format, row.codes, k - row.first_col) * scale * w.global_scale;
    }
  }
}

void dequantize_rows(const QuantizedWeight& w, std::int64_t row_begin, std::int64_t row_end,
                     float* out) {
  TANDEM_CHECK(0 <= row_begin && row_begin <= row_end && row_end <= w.rows,
               "{}: rows {} to {} of {}", w.name, row_begin, row_end, w.rows);
  const std::int64_t scale_row_bytes =
      num_scale_cols(w) * static_cast<std::int64_t>(dtype_bytes(w.scale_dtype));
  for (std::int64_t n = row_begin; n < row_end; ++n) {
    CodeRow row{.codes = w.codes + n * code_row_bytes(w.format, w.cols)};
    if (!is_plain(w.format)) row.scales = w.scales + scale_row_of(w, n) * scale_row_bytes;
    dequantize_row(w, row, 0, w.cols, out + (n - row_begin) * w.cols);
  }
}

std::vector<std::string> scan_weight(const QuantizedWeight& w) {
  std::vector<std::string> faults;
  for (std::int64_t n = 0; n < w.rows && faults.size() < kMaxFaults; ++n) {
    const std::byte* row = w.codes + n * code_row_bytes(w.format, w.cols);
    for (std::int64_t k = 0; k < w.cols; ++k) {
      const float value = decode(w.format, row, k);
      if (std::isfinite(value)) continue;
      faults.push_back(fmt::format("{}: weight [{}, {}] is {}", w.name, n, k, value));
      break;
    }
  }
  if (is_plain(w.format)) return faults;
  for (auto& fault : scan_scales(w, w.scales, {}, num_scale_rows(w))) {
    faults.push_back(std::move(fault));
  }
  return faults;
}

std::vector<std::string> scan_scales(const QuantizedWeight& w, const std::byte* scales,
                                     ScalePlace first, std::int64_t num_rows) {
  std::vector<std::string> faults;
  if (!is_usable_scale(w.global_scale)) {
    faults.push_back(fmt::format("{}: second-level scale is {}; expected a positive finite number",
                                 w.name, w.global_scale));
  } else if (w.format == WeightFormat::kNvfp4 && w.global_scale >= 1) {
    // amax / (6 * 448) of any real weight is far below 1; its reciprocal is far above.
    faults.push_back(
        fmt::format("{}: second-level scale is {}; expected one below 1 (is it the reciprocal?)",
                    w.name, w.global_scale));
  }
  const std::int64_t cols = num_scale_cols(w);
  for (std::int64_t i = 0; i < num_rows * cols && faults.size() < kMaxFaults; ++i) {
    const float scale = read_scale(scales, w.scale_dtype, i);
    if (is_usable_scale(scale)) continue;
    // An all-zero block may have the scale +0 where the scale itself is 8 bits wide.
    if (w.format == WeightFormat::kNvfp4 && scale == 0 && !std::signbit(scale)) continue;
    faults.push_back(fmt::format("{}: scale [{}, {}] is {}; expected a positive finite number",
                                 w.name, first.row + i / cols, first.col + i % cols, scale));
  }
  return faults;
}

float read_global_scale(const Checkpoint& checkpoint, const WeightLayout& layout) {
  if (layout.global_scale_use == GlobalScale::kNone) return 1.0f;
  const auto bytes = read_tensor(checkpoint, layout.global_scale);
  TANDEM_CHECK(bytes.size() == sizeof(float), "{}", layout.global_scale);
  const float stored = read_at<float>(bytes.data(), 0);
  return layout.global_scale_use == GlobalScale::kReciprocal ? 1.0f / stored : stored;
}

float read_weight_factor(const Checkpoint& checkpoint, const WeightLayout& layout) {
  QuantizedWeight weight = weight_without_data(layout);
  weight.global_scale = read_global_scale(checkpoint, layout);
  std::vector<std::byte> scale;
  const bool one_scale = layout.format == WeightFormat::kFp8Tensor;
  if (one_scale) {
    scale = read_tensor(checkpoint, layout.scale);
    TANDEM_CHECK(scale.size() == dtype_bytes(layout.scale_dtype), "{}", layout.scale);
  }
  FaultList faults;
  for (auto& fault : scan_scales(weight, scale.data(), {}, one_scale ? 1 : 0)) {
    faults.add_text(std::move(fault));
  }
  faults.throw_if_any(checkpoint.file_path(checkpoint.find(layout.weight)->file).string());
  if (one_scale) return read_scale(scale.data(), layout.scale_dtype, 0) * weight.global_scale;
  return weight.global_scale;
}

std::vector<float> read_scale_tensor(const Checkpoint& checkpoint, const std::string& name) {
  const auto bytes = read_tensor(checkpoint, name);
  const DType dtype = checkpoint.find(name)->dtype;
  std::vector<float> scales(bytes.size() / dtype_bytes(dtype));
  for (std::size_t i = 0; i < scales.size(); ++i) {
    scales[i] = read_scale(bytes.data(), dtype, static_cast<std::int64_t>(i));
  }
  return scales;
}

LoadedWeight load_weight(const Checkpoint& checkpoint, const WeightLayout& layout) {
  LoadedWeight loaded;
  loaded.view = weight_without_data(layout);
  loaded.view.global_scale = read_global_scale(checkpoint, layout);
  loaded.codes = read_tensor(checkpoint, layout.weight);
  loaded.view.codes = loaded.codes.data();
  if (!layout.scale.empty()) {
    loaded.scales = read_tensor(checkpoint, layout.scale);
    loaded.view.scales = loaded.scales.data();
  }
  FaultList faults;
  for (auto& fault : scan_weight(loaded.view)) faults.add_text(std::move(fault));
  faults.throw_if_any(checkpoint.file_path(checkpoint.find(layout.weight)->file).string());
  return loaded;
}

}  // namespace tandem
