#include "bench/gemm.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "base/counter_rng.h"
#include "base/error.h"
#include "base/types.h"

namespace tandem {
namespace {

// Memory of the backend, given back at the end of the scope.
class BenchBuffer {
 public:
  BenchBuffer(Backend& backend, std::size_t bytes)
      : backend_(backend), bytes_(bytes), data_(backend.allocate(bytes)) {}
  ~BenchBuffer() { backend_.deallocate(data_, bytes_); }
  BenchBuffer(const BenchBuffer&) = delete;
  BenchBuffer& operator=(const BenchBuffer&) = delete;
  void* data() const { return data_; }

 private:
  Backend& backend_;
  std::size_t bytes_;
  void* data_;
};

float random_value(std::uint64_t seed, std::size_t i) {
  const std::uint32_t bits =
      random_bits({.seed = seed}, 0, RngPurpose::kDummyWeight, static_cast<std::uint32_t>(i));
  return uniform01(bits) - 0.5f;
}

// Values repeat after a prime length: as good as fresh ones for timing and checking, and quick.
constexpr std::size_t kPeriod = 65521;

std::vector<bf16> random_bf16(std::uint64_t seed, std::size_t count) {
  std::vector<bf16> values(count);
  for (std::size_t i = 0; i < std::min(count, kPeriod); ++i)
    values[i] = to_bf16(random_value(seed, i));
  for (std::size_t i = kPeriod; i < count; ++i) values[i] = values[i - kPeriod];
  return values;
}

std::vector<float> random_f32(std::uint64_t seed, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < std::min(count, kPeriod); ++i) values[i] = random_value(seed, i);
  for (std::size_t i = kPeriod; i < count; ++i) values[i] = values[i - kPeriod];
  return values;
}

// Weights of one benchmark: on the host for the check, on the device for the run.
struct Weights {
  std::vector<bf16> narrow;
  std::vector<float> wide;

  Weights(ops::WeightFormat format, std::size_t count) {
    TANDEM_CHECK(format == ops::WeightFormat::kBf16 || format == ops::WeightFormat::kF32,
                 "format {}", static_cast<int>(format));
    if (format == ops::WeightFormat::kBf16) {
      narrow = random_bf16(2, count);
    } else {
      wide = random_f32(2, count);
    }
  }
  std::size_t bytes() const { return narrow.size() * sizeof(bf16) + wide.size() * sizeof(float); }
  const void* data() const {
    return narrow.empty() ? static_cast<const void*>(wide.data()) : narrow.data();
  }
  double value(std::size_t i) const { return narrow.empty() ? wide[i] : to_float(narrow[i]); }
};

double largest_error(const GemmShape& shape, int rows, const std::vector<bf16>& x,
                     const Weights& weights, const std::vector<float>& y) {
  const auto outs = static_cast<std::size_t>(shape.out_features);
  const auto columns = static_cast<std::size_t>(shape.in_features);
  double largest = 0;
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
    for (std::size_t n = r % 7; n < outs; n += outs / 16 + 1) {
      double sum = 0, magnitude = 0;
      for (std::size_t k = 0; k < columns; ++k) {
        const double term = to_float(x[r * columns + k]) * weights.value(n * columns + k);
        sum += term;
        magnitude += std::abs(term);
      }
      largest = std::max(largest, std::abs(y[r * outs + n] - sum) / magnitude);
    }
  }
  return largest;
}

GemmBenchResult bench_one(Backend& backend, const GemmBenchOptions& options,
                          ops::WeightFormat format, const GemmShape& shape, const Weights& weights,
                          const void* device_weights, int rows) {
  const auto x = random_bf16(1, static_cast<std::size_t>(rows * shape.in_features));
  std::vector<float> y(static_cast<std::size_t>(rows * shape.out_features));
  const std::size_t x_bytes = x.size() * sizeof(bf16), y_bytes = y.size() * sizeof(float);
  BenchBuffer device_x(backend, x_bytes), device_y(backend, y_bytes);
  backend.copy(device_x.data(), x.data(), x_bytes);
  const ops::LinearArgs args{.x = device_x.data(),
                             .x_stride = shape.in_features,
                             .num_rows = rows,
                             .weight = {.format = format,
                                        .out_features = shape.out_features,
                                        .in_features = shape.in_features,
                                        .data = device_weights},
                             .y = device_y.data(),
                             .y_dtype = DType::kF32,
                             .y_stride = shape.out_features};
  GemmBenchResult result{.format = format, .shape = shape, .num_rows = rows};
  result.bytes = static_cast<std::int64_t>(weights.bytes() + x_bytes + y_bytes);
  result.seconds = least_median_s(options.repeats, [&] {
    ops::linear(backend, args);
    backend.synchronize();
  });
  backend.copy(y.data(), device_y.data(), y_bytes);
  backend.synchronize();
  result.error = largest_error(shape, rows, x, weights, y);
  return result;
}

}  // namespace

double measure_read_bandwidth(Backend& backend, std::int64_t bytes, const BenchRepeats& repeats) {
  // Lines are asked for 4 KiB ahead: the hardware's prefetch alone reads a tenth less.
  constexpr std::int64_t kLineWords = 8, kWordsAhead = 512;
  const std::int64_t words =
      bytes / static_cast<std::int64_t>(sizeof(std::uint64_t)) / kLineWords * kLineWords;
  BenchBuffer buffer(backend, static_cast<std::size_t>(bytes));
  backend.zero(buffer.data(), static_cast<std::size_t>(bytes));
  backend.synchronize();
  const auto* data = static_cast<const std::uint64_t*>(buffer.data());
  std::uint64_t sum = 0;
  const double seconds = least_median_s(repeats, [&] {
    std::uint64_t total = 0;
    // Small pieces handed out as threads become free: a core that others use costs its share only.
    constexpr std::int64_t kPiece = std::int64_t{1} << 17;
#pragma omp parallel for num_threads(backend.num_threads()) schedule(dynamic, 1) reduction(+ : total)
    for (std::int64_t begin = 0; begin < words; begin += kPiece) {
      const std::int64_t end = std::min(words, begin + kPiece);
      std::uint64_t part = 0;
      for (std::int64_t i = begin; i < end; i += kLineWords) {
        __builtin_prefetch(data + i + kWordsAhead);
        for (std::int64_t j = 0; j < kLineWords; ++j) part += data[i + j];
      }
      total += part;
    }
    sum += total;
  });
  TANDEM_CHECK(sum == 0, "zeros add up to {}", sum);  // and the reads were not optimized away
  return static_cast<double>(bytes) / seconds;
}

std::vector<GemmBenchResult> run_gemm_bench(Backend& backend, const GemmBenchOptions& options) {
  std::vector<GemmBenchResult> results;
  for (const ops::WeightFormat format : options.formats) {
    for (const GemmShape& shape : options.shapes) {
      const Weights weights(format,
                            static_cast<std::size_t>(shape.out_features * shape.in_features));
      BenchBuffer device_weights(backend, weights.bytes());
      backend.copy(device_weights.data(), weights.data(), weights.bytes());
      for (const int rows : options.rows) {
        results.push_back(
            bench_one(backend, options, format, shape, weights, device_weights.data(), rows));
      }
    }
  }
  return results;
}

}  // namespace tandem
