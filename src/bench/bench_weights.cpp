#include "bench/bench_weights.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/counter_rng.h"
#include "base/error.h"
#include "base/types.h"

namespace tandem {
namespace {

using ops::WeightFormat;

constexpr std::array<std::pair<WeightFormat, std::string_view>, 9> kFormats = {{
    {WeightFormat::kBf16, "bf16"},
    {WeightFormat::kF32, "f32"},
    {WeightFormat::kFp8Block, "fp8_block"},
    {WeightFormat::kFp8Tensor, "fp8_tensor"},
    {WeightFormat::kFp8Channel, "fp8_channel"},
    {WeightFormat::kNvfp4, "nvfp4"},
    {WeightFormat::kMxfp4, "mxfp4"},
    {WeightFormat::kInt8Channel, "int8_channel"},
    {WeightFormat::kInt8Group, "int8_group"},
}};

// Values repeat after a prime length: as good as fresh ones for timing and checking, and quick.
constexpr std::size_t kPeriod = 65521;

std::uint32_t random_word(std::uint64_t seed, std::size_t i) {
  return random_bits({.seed = seed}, 0, RngPurpose::kDummyWeight, static_cast<std::uint32_t>(i));
}

template <class T, class Make>
std::vector<std::byte> repeated(std::uint64_t seed, std::size_t count, const Make& make) {
  std::vector<std::byte> bytes(count * sizeof(T));
  const std::size_t fresh = std::min(count, kPeriod);
  for (std::size_t i = 0; i < fresh; ++i) {
    const T value = make(random_word(seed, i));
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  for (std::size_t at = fresh * sizeof(T); at < bytes.size();) {
    const std::size_t length = std::min(at, bytes.size() - at);
    std::memcpy(bytes.data() + at, bytes.data(), length / sizeof(T) * sizeof(T));
    at += length;
  }
  return bytes;
}

std::int64_t divide_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit; }

template <class T>
T element(const std::vector<std::byte>& bytes, std::int64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + static_cast<std::size_t>(i) * sizeof(T), sizeof(T));
  return value;
}

bool has_scales(WeightFormat format) {
  return format != WeightFormat::kBf16 && format != WeightFormat::kF32 &&
         format != WeightFormat::kFp8Tensor;
}

void describe_blocks(ops::LinearWeight& w) {
  const auto blocks = [&w](int rows, int cols, DType scale) {
    w.block_rows = rows;
    w.block_cols = cols;
    w.scale_dtype = scale;
  };
  switch (w.format) {
    case WeightFormat::kFp8Block:
      return blocks(128, 128, DType::kF32);
    case WeightFormat::kNvfp4:
      w.scale_2 = 0.25f;
      return blocks(1, 16, DType::kF8E4M3);
    case WeightFormat::kMxfp4:
      return blocks(1, 32, DType::kF8E8M0);
    case WeightFormat::kInt8Group:
      return blocks(1, 128, DType::kBF16);
    case WeightFormat::kFp8Channel:
    case WeightFormat::kInt8Channel:
      return blocks(1, static_cast<int>(w.in_features), DType::kF32);
    case WeightFormat::kFp8Tensor:
      w.scale_2 = 0.25f;
      return;
    case WeightFormat::kBf16:
    case WeightFormat::kF32:
      return;
  }
}

std::vector<std::byte> make_codes(const ops::LinearWeight& w) {
  const auto count = static_cast<std::size_t>(w.out_features * w.in_features);
  constexpr std::uint64_t kSeed = 2;
  const auto centred = [](std::uint32_t bits) { return uniform01(bits) - 0.5f; };
  switch (w.format) {
    case WeightFormat::kBf16:
      return repeated<bf16>(kSeed, count, [&](std::uint32_t b) { return to_bf16(centred(b)); });
    case WeightFormat::kF32:
      return repeated<float>(kSeed, count, centred);
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4:
      return repeated<std::uint8_t>(kSeed, count / 2, [](std::uint32_t b) { return b >> 24; });
    case WeightFormat::kInt8Channel:
    case WeightFormat::kInt8Group:
      return repeated<std::uint8_t>(kSeed, count, [](std::uint32_t b) { return b >> 24; });
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Tensor:
    case WeightFormat::kFp8Channel:
      break;
  }
  // E4M3 without its two NaN codes.
  return repeated<std::uint8_t>(kSeed, count, [](std::uint32_t b) {
    const std::uint32_t code = b >> 24;
    return static_cast<std::uint8_t>((code & 0x7f) == 0x7f ? code ^ 1 : code);
  });
}

std::vector<std::byte> make_scales(const ops::LinearWeight& w) {
  if (!has_scales(w.format)) return {};
  const auto count = static_cast<std::size_t>(divide_up(w.out_features, w.block_rows) *
                                              divide_up(w.in_features, w.block_cols));
  constexpr std::uint64_t kSeed = 3;
  const auto positive = [](std::uint32_t bits) { return 0.5f + uniform01(bits); };
  switch (w.scale_dtype) {
    case DType::kF32:
      return repeated<float>(kSeed, count, positive);
    case DType::kBF16:
      return repeated<bf16>(kSeed, count, [&](std::uint32_t b) { return to_bf16(positive(b)); });
    case DType::kF8E4M3:  // 0.5 ... 1.875
      return repeated<std::uint8_t>(kSeed, count, [](std::uint32_t b) { return 0x30 + (b >> 28); });
    default:  // E8M0: 1/4 ... 2
      return repeated<std::uint8_t>(kSeed, count, [](std::uint32_t b) { return 125 + (b >> 30); });
  }
}

}  // namespace

BenchWeights::BenchWeights(WeightFormat format, const GemmShape& shape)
    : layout_{
          .format = format, .out_features = shape.out_features, .in_features = shape.in_features} {
  describe_blocks(layout_);
  codes_ = make_codes(layout_);
  scales_ = make_scales(layout_);
}

double BenchWeights::scale(std::int64_t n, std::int64_t k) const {
  if (!has_scales(layout_.format)) return layout_.scale_2;
  const std::int64_t at =
      n / layout_.block_rows * divide_up(layout_.in_features, layout_.block_cols) +
      k / layout_.block_cols;
  const double second = layout_.scale_2;
  switch (layout_.scale_dtype) {
    case DType::kF32:
      return element<float>(scales_, at) * second;
    case DType::kBF16:
      return to_float(element<bf16>(scales_, at)) * second;
    case DType::kF8E4M3:
      return e4m3_to_float(element<std::uint8_t>(scales_, at)) * second;
    default:
      return e8m0_to_float(element<std::uint8_t>(scales_, at)) * second;
  }
}

double BenchWeights::value(std::int64_t n, std::int64_t k) const {
  const std::int64_t i = n * layout_.in_features + k;
  switch (layout_.format) {
    case WeightFormat::kBf16:
      return to_float(element<bf16>(codes_, i));
    case WeightFormat::kF32:
      return element<float>(codes_, i);
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4: {
      const auto pair = element<std::uint8_t>(codes_, i / 2);
      const auto nibble = static_cast<std::uint8_t>(i % 2 == 0 ? pair & 0xf : pair >> 4);
      return e2m1_to_float(nibble) * scale(n, k);
    }
    case WeightFormat::kInt8Channel:
    case WeightFormat::kInt8Group:
      return element<std::int8_t>(codes_, i) * scale(n, k);
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Tensor:
    case WeightFormat::kFp8Channel:
      break;
  }
  return e4m3_to_float(element<std::uint8_t>(codes_, i)) * scale(n, k);
}

std::string_view format_name(WeightFormat format) {
  for (const auto& [known, name] : kFormats) {
    if (known == format) return name;
  }
  TANDEM_CHECK(false, "weight format {}", static_cast<int>(format));
}

WeightFormat format_named(std::string_view name) {
  for (const auto& [format, known] : kFormats) {
    if (known == name) return format;
  }
  TANDEM_CHECK(false, "weight format '{}'", name);
}

std::vector<WeightFormat> supported_formats(const Backend& backend) {
  std::vector<WeightFormat> formats;
  for (const auto& [format, name] : kFormats) {
    if (ops::linear_supports(backend.kind(), format)) formats.push_back(format);
  }
  return formats;
}

}  // namespace tandem
