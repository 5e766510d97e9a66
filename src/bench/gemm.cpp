#include "bench/gemm.h"

#include <algorithm>
#include <cmath>

#include "base/counter_rng.h"
#include "base/types.h"
#include "bench/bench_buffer.h"

namespace tandem {
namespace {

constexpr std::size_t kScaleAlignment = 256;
constexpr std::int64_t kMostCopies = 64;

std::vector<bf16> random_bf16(std::uint64_t seed, std::size_t count) {
  // Repeated after a prime length, as the weights are.
  constexpr std::size_t kPeriod = 65521;
  std::vector<bf16> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::uint32_t>(i);
    values[i] =
        i < kPeriod
            ? to_bf16(uniform01(random_bits({.seed = seed}, 0, RngPurpose::kDummyWeight, at)) -
                      0.5f)
            : values[i - kPeriod];
  }
  return values;
}

// Equal copies of a weight side by side; each call takes the next one.
class WeightRing {
 public:
  WeightRing(Backend& backend, const BenchWeights& weights, std::int64_t ring_bytes)
      : layout_(weights.layout()),
        copies_(static_cast<std::size_t>(
            std::clamp<std::int64_t>(ring_bytes / weights.bytes() + 1, 1, kMostCopies))),
        scales_at_(round_up(weights.codes().size())),
        copy_bytes_(scales_at_ + round_up(weights.scales().size())),
        memory_(backend, copies_ * copy_bytes_) {
    backend.copy(memory_.at(0), weights.codes().data(), weights.codes().size());
    if (!weights.scales().empty())
      backend.copy(memory_.at(scales_at_), weights.scales().data(), weights.scales().size());
    layout_.data = memory_.at(0);
    layout_.scales = memory_.at(scales_at_);
    ops::prepack_weight(backend, layout_);
    for (std::size_t i = 1; i < copies_; ++i)
      backend.copy(memory_.at(i * copy_bytes_), memory_.at(0), copy_bytes_);
    backend.synchronize();
  }

  int copies() const { return static_cast<int>(copies_); }
  ops::LinearWeight next() {
    ops::LinearWeight w = layout_;
    w.data = memory_.at(at_ * copy_bytes_);
    w.scales = memory_.at(at_ * copy_bytes_ + scales_at_);
    at_ = (at_ + 1) % copies_;
    return w;
  }

 private:
  static std::size_t round_up(std::size_t bytes) {
    return (bytes + kScaleAlignment - 1) / kScaleAlignment * kScaleAlignment;
  }

  ops::LinearWeight layout_;
  std::size_t copies_;
  std::size_t scales_at_;  // in a copy
  std::size_t copy_bytes_;
  BenchBuffer memory_;
  std::size_t at_ = 0;
};

double largest_error(const GemmShape& shape, int rows, const std::vector<bf16>& x,
                     const BenchWeights& weights, const std::vector<float>& y) {
  const std::int64_t outs = shape.out_features, columns = shape.in_features;
  double largest = 0;
  for (std::int64_t r = 0; r < rows; r += rows / 16 + 1) {
    for (std::int64_t n = r % 7 % outs; n < outs; n += outs / 16 + 1) {
      double sum = 0, magnitude = 0;
      for (std::int64_t k = 0; k < columns; ++k) {
        const double term =
            to_float(x[static_cast<std::size_t>(r * columns + k)]) * weights.value(n, k);
        sum += term;
        magnitude += std::abs(term);
      }
      const double error = std::abs(y[static_cast<std::size_t>(r * outs + n)] - sum) / magnitude;
      // A NaN is the largest error of all.
      if (!(error <= largest)) largest = std::isnan(error) ? HUGE_VAL : error;
    }
  }
  return largest;
}

GemmBenchResult bench_one(Backend& backend, const GemmBenchOptions& options, const GemmShape& shape,
                          const BenchWeights& weights, WeightRing& ring, int rows) {
  const auto x = random_bf16(1, static_cast<std::size_t>(rows * shape.in_features));
  std::vector<float> y(static_cast<std::size_t>(rows * shape.out_features));
  const std::size_t x_bytes = x.size() * sizeof(bf16), y_bytes = y.size() * sizeof(float);
  const BenchBuffer device_x(backend, x_bytes), device_y(backend, y_bytes);
  backend.copy(device_x.as(), x.data(), x_bytes);
  ops::LinearArgs args{
      .x = device_x.as(),
      .x_stride = shape.in_features,
      .num_rows = rows,
      .weight = {},
      .row_class = rows < kPromptRows ? ops::RowClass::kGenerated : ops::RowClass::kPrompt,
      .y = device_y.as(),
      .y_dtype = DType::kF32,
      .y_stride = shape.out_features};
  const auto work = [&] {
    args.weight = ring.next();
    ops::linear(backend, args);
  };
  GemmBenchResult result{.format = weights.layout().format, .shape = shape, .num_rows = rows};
  result.bytes = weights.bytes() + static_cast<std::int64_t>(x_bytes + y_bytes);
  // A graph is replayed with the pointers it was captured with: it has to hold the whole ring.
  const bool captured = backend.kind() == BackendKind::kCuda;
  const int calls = calls_for_sample(backend, options.sample_s, work);
  result.seconds = device_seconds(backend, options.repeats,
                                  {.submit = ops::Submit::kCaptured,
                                   .calls = captured ? std::max(calls, ring.copies()) : calls},
                                  work);
  backend.copy(y.data(), device_y.as(), y_bytes);
  backend.synchronize();
  result.error = largest_error(shape, rows, x, weights, y);
  return result;
}

}  // namespace

std::vector<GemmShape> model_shapes() {
  return {{17408, 5120, "mlp gate, up"},  {5120, 17408, "mlp down"},
          {10240, 5120, "delta-net qkv"}, {6144, 5120, "delta-net z"},
          {12288, 5120, "attention q"},   {5120, 6144, "attention o, delta-net out"},
          {248320, 5120, "lm head", 64}};
}

std::vector<GemmBenchResult> run_gemm_bench(Backend& backend, const GemmBenchOptions& options) {
  std::vector<GemmBenchResult> results;
  for (const ops::WeightFormat format : options.formats) {
    for (const GemmShape& shape : options.shapes) {
      const BenchWeights weights(format, shape);
      WeightRing ring(backend, weights, options.ring_bytes);
      for (const int rows : options.rows) {
        if (rows > shape.most_rows) continue;
        results.push_back(bench_one(backend, options, shape, weights, ring, rows));
      }
    }
  }
  return results;
}

}  // namespace tandem
