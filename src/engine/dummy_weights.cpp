// Made of few random bytes: a pool of some megabytes for each distribution of values, of which a
// tensor is a window that starts at a place of its own and wraps around. The pool's length is a
// prime number of 16-byte units, so that no two rows of a matrix are the same window. Filling 50 GB
// is then a matter of copying.
#include "engine/dummy_weights.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstring>
#include <map>
#include <numeric>
#include <string_view>

#include "base/error.h"
#include "base/hash.h"
#include "base/types.h"
#include "checkpoint/dequantize.h"

namespace tandem {
namespace {

constexpr std::int64_t kPoolUnit = 16;
constexpr std::int64_t kPoolBytes = 262139 * kPoolUnit;  // 4 MiB; 262139 is prime
// Slices that are no window of the pool are put together in pieces of this size.
constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;
// Positive E4M3 scales from 16 to 240: NVFP4's block scales.
constexpr int kFirstScaleCode = 0x58, kNumScaleCodes = 0x20;

// splitmix64's finalizer.
std::uint64_t mix(std::uint64_t v) {
  v += 0x9E3779B97F4A7C15ull;
  v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9ull;
  v = (v ^ (v >> 27)) * 0x94D049BB133111EBull;
  return v ^ (v >> 31);
}

// What the elements of an array are drawn from.
struct Distribution {
  enum class Kind {
    kBf16,   // uniform in [low, high)
    kF32,    // uniform in [low, high)
    kE4m3,   // all codes but NaN
    kCodes,  // bytes from `first` on, `count` of them
  };
  Kind kind = Kind::kBf16;
  float low = 0, high = 0;
  int first = 0, count = 256;

  auto operator<=>(const Distribution&) const = default;
};

std::int64_t element_bytes(Distribution::Kind kind) {
  switch (kind) {
    case Distribution::Kind::kBf16:
      return 2;
    case Distribution::Kind::kF32:
      return 4;
    default:
      return 1;
  }
}

void draw(const Distribution& d, std::uint64_t bits, std::byte* out) {
  const float unit = static_cast<float>(bits >> 40) * 0x1.0p-24f;
  const float value = d.low + unit * (d.high - d.low);
  const auto byte = [&](std::uint64_t count) { return (bits >> 32) * count >> 32; };
  switch (d.kind) {
    case Distribution::Kind::kBf16: {
      const bf16 narrow = to_bf16(value);
      std::memcpy(out, &narrow, sizeof narrow);
      return;
    }
    case Distribution::Kind::kF32:
      std::memcpy(out, &value, sizeof value);
      return;
    case Distribution::Kind::kE4m3: {
      const std::uint64_t code = byte(254);  // 0x7f and 0xff are NaN
      *out = static_cast<std::byte>(code < 0x7f ? code : code + 1);
      return;
    }
    case Distribution::Kind::kCodes:
      *out = static_cast<std::byte>(static_cast<std::uint64_t>(d.first) +
                                    byte(static_cast<std::uint64_t>(d.count)));
      return;
  }
}

template <class Value>
float root_mean_square(int first, int count, const Value& value) {
  double sum = 0;
  for (int code = first; code < first + count; ++code) {
    const double v = value(static_cast<std::uint8_t>(code));
    sum += v * v;
  }
  return static_cast<float>(std::sqrt(sum / count));
}

// Of codes drawn as fill() draws them.
float code_rms(WeightFormat format) {
  switch (format) {
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4:
      return root_mean_square(0, 16, e2m1_to_float);
    case WeightFormat::kInt8Channel:
    case WeightFormat::kInt8Group:
      return root_mean_square(0, 256, [](std::uint8_t c) { return static_cast<std::int8_t>(c); });
    default:
      return root_mean_square(0, 0x7f, e4m3_to_float);
  }
}

// Weights of this root mean square keep the size of what they multiply.
float weight_rms(std::int64_t fan_in) {
  return 1.0f / std::sqrt(static_cast<float>(std::max<std::int64_t>(1, fan_in)));
}

Distribution uniform(DType type, float low, float high) {
  return {.kind = type == DType::kF32 ? Distribution::Kind::kF32 : Distribution::Kind::kBf16,
          .low = low,
          .high = high};
}

Distribution plain_values(const TensorRequest& request) {
  const std::string_view name = request.name;
  const DType type = request.as;
  if (name.ends_with("linear_attn.norm.weight")) return uniform(type, 0.9f, 1.1f);  // plain weight
  if (name.ends_with("norm.weight") || name.find("_norm") != std::string_view::npos) {
    return uniform(type, -0.1f, 0.1f);  // zero-centred
  }
  if (name.ends_with("A_log")) return uniform(type, 0.0f, 2.0f);
  if (name.ends_with("dt_bias")) return uniform(type, -2.0f, 1.0f);
  const float bound =
      std::sqrt(3.0f) * weight_rms(shape_numel(request.shape) / request.shape.front());
  return uniform(type, -bound, bound);
}

Distribution codes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFp8Block:
    case WeightFormat::kFp8Tensor:
    case WeightFormat::kFp8Channel:
      return {.kind = Distribution::Kind::kE4m3};
    default:
      return {.kind = Distribution::Kind::kCodes};
  }
}

Distribution scales(const QuantizedTarget& target, std::int64_t fan_in) {
  if (target.format == WeightFormat::kNvfp4) {  // the size is in the second-level scale
    return {.kind = Distribution::Kind::kCodes, .first = kFirstScaleCode, .count = kNumScaleCodes};
  }
  const float middle = weight_rms(fan_in) / code_rms(target.format);
  if (target.scale_dtype == DType::kF8E8M0) {
    const int exponent = static_cast<int>(std::floor(std::log2(middle)));
    return {.kind = Distribution::Kind::kCodes, .first = exponent + 127, .count = 2};
  }
  return uniform(target.scale_dtype, 0.5f * middle, 1.5f * middle);
}

// An array in memory as part of the array that the whole tensor would have: rows of `stride_bytes`,
// of which the bytes from `first_byte` on are kept.
struct Slice {
  std::byte* dst = nullptr;
  std::uint64_t seed = 0;
  std::int64_t stride_bytes = 0;
  std::int64_t first_byte = 0;
  std::int64_t row_bytes = 0;
  std::vector<RowRange> rows;
};

// Random bytes of one distribution, in memory that both the host and the device read.
class Pool {
 public:
  explicit Pool(Backend& backend)
      : backend_(backend),
        data_(static_cast<std::byte*>(backend.allocate(kPoolBytes, MemoryKind::kHostVisible))) {}
  ~Pool() { backend_.deallocate(data_, kPoolBytes, MemoryKind::kHostVisible); }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void fill(const Distribution& distribution) {
    backend_.synchronize();  // copies of the last one
    const std::int64_t element = element_bytes(distribution.kind);
    const std::uint64_t seed = xxh3_64("dummy weights");
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < kPoolBytes / element; ++i) {
      draw(distribution, mix(seed ^ static_cast<std::uint64_t>(i)), data_ + i * element);
    }
  }

  // Byte `at` of the tensor's whole array.
  const std::byte* byte(std::uint64_t seed, std::int64_t at) const {
    return data_ + (place(seed) + at) % kPoolBytes;
  }

  void copy_slice(const Slice& slice) {
    if (slice.row_bytes == slice.stride_bytes) {
      std::byte* dst = slice.dst;
      for (const auto& range : slice.rows) {
        const std::int64_t bytes = range.count() * slice.row_bytes;
        copy_window(dst, slice.seed, range.begin * slice.stride_bytes, bytes);
        dst += bytes;
      }
      return;
    }
    Pieces pieces(backend_, slice.dst);
    for (const auto& range : slice.rows) {
      for (std::int64_t row = range.begin; row < range.end; ++row) {
        append(pieces, slice.seed, row * slice.stride_bytes + slice.first_byte, slice.row_bytes);
      }
    }
  }

  // Scales one by one: rows and columns may come more than once.
  void copy_scales(std::byte* dst, std::uint64_t seed, const ScaleSlice& slice,
                   std::int64_t whole_cols, std::int64_t element) {
    Pieces pieces(backend_, dst);
    for (const std::int64_t row : slice.rows) {
      for (const std::int64_t col : slice.cols) {
        append(pieces, seed, (row * whole_cols + col) * element, element);
      }
    }
  }

 private:
  // Host memory that is handed to the backend whenever it is full, and at the end.
  class Pieces {
   public:
    Pieces(Backend& backend, std::byte* dst) : backend_(backend), dst_(dst) {
      buffer_.reserve(kPieceBytes);
    }
    ~Pieces() noexcept(false) { flush(); }
    void append(const std::byte* data, std::int64_t bytes) {
      if (static_cast<std::int64_t>(buffer_.size()) + bytes > kPieceBytes) flush();
      buffer_.insert(buffer_.end(), data, data + bytes);
    }

   private:
    void flush() {
      backend_.copy(dst_, buffer_.data(), buffer_.size());
      backend_.synchronize();
      dst_ += buffer_.size();
      buffer_.clear();
    }
    Backend& backend_;
    std::byte* dst_;
    std::vector<std::byte> buffer_;
  };

  static std::int64_t place(std::uint64_t seed) {
    return static_cast<std::int64_t>(seed % (kPoolBytes / kPoolUnit)) * kPoolUnit;
  }

  // Calls piece(source, bytes) for the runs of a window that do not wrap around.
  template <class Piece>
  void for_each_run(std::uint64_t seed, std::int64_t at, std::int64_t bytes, const Piece& piece) {
    while (bytes > 0) {
      const std::byte* source = byte(seed, at);
      const std::int64_t n = std::min(bytes, kPoolBytes - (source - data_));
      piece(source, n);
      at += n;
      bytes -= n;
    }
  }

  void append(Pieces& pieces, std::uint64_t seed, std::int64_t at, std::int64_t bytes) {
    for_each_run(seed, at, bytes,
                 [&](const std::byte* source, std::int64_t n) { pieces.append(source, n); });
  }

  void copy_window(std::byte* dst, std::uint64_t seed, std::int64_t at, std::int64_t bytes) {
    for_each_run(seed, at, bytes, [&](const std::byte* source, std::int64_t n) {
      backend_.copy(dst, source, static_cast<std::size_t>(n));
      dst += n;
    });
  }

  Backend& backend_;
  std::byte* data_;
};

Slice code_slice(const TensorRequest& request) {
  const auto bytes_of = [&](std::int64_t columns) {
    if (request.quantized) return code_row_bytes(request.quantized->format, columns);
    return columns * static_cast<std::int64_t>(dtype_bytes(request.as));
  };
  const ColRange cols = kept_col_range(request);
  TANDEM_CHECK(request.dst_row_stride == cols.count(), "{}: rows must be packed", request.name);
  return {.dst = static_cast<std::byte*>(request.dst),
          .seed = xxh3_64(request.name),
          .stride_bytes = bytes_of(shape_numel(request.shape) / request.shape.front()),
          .first_byte = bytes_of(cols.begin),
          .row_bytes = bytes_of(cols.count()),
          .rows = kept_row_ranges(request)};
}

void fill_scales(Pool& pool, const TensorRequest& request) {
  const QuantizedTarget& target = *request.quantized;
  const std::int64_t in = request.shape.back();
  const auto element = static_cast<std::int64_t>(dtype_bytes(target.scale_dtype));
  const std::int64_t whole_cols = (in + target.block_cols - 1) / target.block_cols;
  const std::vector<RowRange> rows = kept_row_ranges(request);
  const ColRange cols = kept_col_range(request);
  const std::uint64_t seed = xxh3_64(request.name + "_scale");
  auto* dst = static_cast<std::byte*>(target.scales);
  if (target.block_rows == 1 && cols == ColRange{0, in}) {
    return pool.copy_slice({.dst = dst,
                            .seed = seed,
                            .stride_bytes = whole_cols * element,
                            .first_byte = 0,
                            .row_bytes = whole_cols * element,
                            .rows = rows});
  }
  pool.copy_scales(dst, seed, slice_scales(target.block_rows, target.block_cols, in, rows, cols),
                   whole_cols, element);
}

bool is_projection(std::string_view name) {
  for (const std::string_view tail :
       {".q_proj.weight", ".k_proj.weight", ".v_proj.weight", ".o_proj.weight",
        ".in_proj_qkv.weight", ".in_proj_z.weight", ".out_proj.weight"}) {
    if (name.ends_with(tail)) return true;
  }
  return false;
}

bool is_mlp(std::string_view name) {
  return name.ends_with(".gate_proj.weight") || name.ends_with(".up_proj.weight") ||
         name.ends_with(".down_proj.weight");
}

constexpr std::int64_t kAll = std::int64_t{1} << 40;  // more rows and columns than any matrix has

StoredFormat format_of(DummyFormat choice, std::string_view name) {
  const bool quantized = is_projection(name) || is_mlp(name);
  switch (choice) {
    case DummyFormat::kFp8Block:
      if (!quantized) break;
      return {WeightFormat::kFp8Block, DType::kBF16, 128, 128};
    case DummyFormat::kFp8Channel:
      if (!quantized) break;
      return {WeightFormat::kFp8Channel, DType::kF32, 1, kAll};
    case DummyFormat::kInt8Group:
      if (!quantized) break;
      return {WeightFormat::kInt8Group, DType::kBF16, 1, 128};
    case DummyFormat::kNvfp4:
      if (name.starts_with("mtp.")) break;
      if (is_mlp(name) || name == "lm_head.weight") {
        return {WeightFormat::kNvfp4, DType::kF8E4M3, 1, 16};
      }
      if (!quantized) break;
      return {WeightFormat::kFp8Tensor, DType::kF32, kAll, kAll};
    default:
      break;
  }
  return {};
}

}  // namespace

DummyWeights::DummyWeights(DummyFormat format, const Checkpoint& checkpoint) : format_(format) {
  if (format == DummyFormat::kAuto && !checkpoint.tensors().empty()) headers_.emplace(checkpoint);
}

std::optional<StoredFormat> DummyWeights::find(const std::string& name) const {
  if (!headers_) return format_of(format_, name);
  auto stored = headers_->find(name);
  // Of the same size, and with an encoder here.
  if (stored && stored->scale_dtype == DType::kF16) stored->scale_dtype = DType::kBF16;
  return stored;
}

float DummyWeights::factor(const std::string& name, std::int64_t in) const {
  const auto stored = find(name);
  TANDEM_CHECK(stored.has_value(), "{}", name);
  const float size = weight_rms(in) / code_rms(stored->format);
  switch (stored->format) {
    case WeightFormat::kFp8Tensor:
      return size;
    case WeightFormat::kNvfp4:
      return size / root_mean_square(kFirstScaleCode, kNumScaleCodes, e4m3_to_float);
    default:
      return 1.0f;
  }
}

std::vector<KvScales> DummyWeights::kv_scales(const std::vector<std::string>& prefixes,
                                              std::int64_t num_kv_heads, UnitScales) const {
  // Keys are normed and random values are small: 16 covers both.
  const std::vector<float> scales(static_cast<std::size_t>(num_kv_heads), 16.0f / kE4m3Max);
  return std::vector<KvScales>(prefixes.size(), {.k = scales, .v = scales});
}

void fill_dummy_weights(const std::vector<TensorRequest>& requests, Backend& backend) {
  enum class Array { kCodes, kScales };
  std::map<Distribution, std::vector<std::pair<const TensorRequest*, Array>>> arrays;
  for (const auto& request : requests) {
    if (!request.quantized) {
      arrays[plain_values(request)].emplace_back(&request, Array::kCodes);
      continue;
    }
    arrays[codes(request.quantized->format)].emplace_back(&request, Array::kCodes);
    if (!request.quantized->has_scales()) continue;
    arrays[scales(*request.quantized, request.shape.back())].emplace_back(&request, Array::kScales);
  }
  Pool pool(backend);
  for (const auto& [distribution, parts] : arrays) {
    pool.fill(distribution);
    for (const auto& [request, array] : parts) {
      if (array == Array::kCodes) {
        pool.copy_slice(code_slice(*request));
      } else {
        fill_scales(pool, *request);
      }
    }
  }
  backend.synchronize();
}

}  // namespace tandem
