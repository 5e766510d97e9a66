// Operators of few rows that are launched as one kernel (cuda/linear_chain.h): to the bit what they
// give one by one, replayed or not.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/handles.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/rms_norm.h"
#include "tests/kernels/op_check.h"

namespace tandem::testing {
namespace {

using ops::WeightFormat;

struct Weight {
  Array codes, scales;
  ops::LinearWeight view;

  Weight(Backend& backend, std::uint64_t seed, WeightFormat format, std::int64_t outs,
         std::int64_t columns)
      : codes(code_array(seed, format, static_cast<std::size_t>(outs * columns))),
        scales(scale_array(seed + 1, format, outs, columns)),
        view{.format = format,
             .out_features = outs,
             .in_features = columns,
             .data = codes.data(),
             .scales = format == WeightFormat::kBf16 ? nullptr : scales.data()} {
    if (format == WeightFormat::kFp8Block) view.block_rows = view.block_cols = 128;
    if (format == WeightFormat::kNvfp4) {
      view.scale_dtype = DType::kF8E4M3;
      view.block_rows = 1;
      view.block_cols = 16;
      view.scale_2 = 0.01f;
    }
    ops::prepack_weight(backend, view);
  }

 private:
  static Array code_array(std::uint64_t seed, WeightFormat format, std::size_t count) {
    if (format == WeightFormat::kBf16) return {DType::kBF16, random_normal(seed, count, 0.02f)};
    // Any byte of FP8 is two codes of FP4.
    const std::size_t bytes = format == WeightFormat::kNvfp4 ? count / 2 : count;
    return {DType::kF8E4M3, random_normal(seed, bytes, 20.0f)};
  }
  static Array scale_array(std::uint64_t seed, WeightFormat format, std::int64_t outs,
                           std::int64_t columns) {
    if (format == WeightFormat::kNvfp4) {
      return {DType::kF8E4M3,
              random_uniform(seed, static_cast<std::size_t>(outs * columns / 16), 0.5f, 2.0f)};
    }
    const auto blocks = static_cast<std::size_t>((outs + 127) / 128 * ((columns + 127) / 128));
    return {DType::kF32, random_uniform(seed, blocks, 0.0005f, 0.001f)};
  }
};

struct Shape {
  int hidden, wide, values, keys, gates;
  WeightFormat mixer, mlp;
};

// What stands before the mixer's own linears.
enum class Begin {
  kOwnLinears,        // nothing: they have run
  kNorm,              // a norm of what no linear has written
  kNormBehindLinear,  // the same, but behind a linear that it does not read
};
enum class NormKind { kScales, kLeavesFactors };
enum class Factors { kShared, kOfEachNorm };  // the memory of norms' factors

struct Pass {
  int rows;
  Begin begin;
  ops::ResidualUpdate update;  // of the first norm
  NormKind last;
  Factors factors;
};

// What a decoder layer does between its mixer and the next one's.
class Layer {
 public:
  static constexpr int kMaxRows = 16;

  Layer(Backend& backend, const Shape& s)
      : s_(s),
        out_(backend, 1, s.mixer, s.hidden, s.values),
        gate_(backend, 3, s.mlp, s.wide, s.hidden),
        up_(backend, 5, s.mlp, s.wide, s.hidden),
        down_(backend, 7, s.mlp, s.hidden, s.wide),
        keys_(backend, 9, s.mixer, s.keys, s.hidden),
        own_values_(backend, 11, s.mixer, s.values, s.hidden),
        a_(backend, 13, WeightFormat::kBf16, s.gates, s.hidden),
        b_(backend, 15, WeightFormat::kBf16, s.gates, s.hidden),
        norms_{{DType::kF32, random_normal(17, size(s.hidden), 0.1f)},
               {DType::kF32, random_normal(18, size(s.hidden), 0.1f)},
               {DType::kF32, random_normal(19, size(s.hidden), 0.1f)},
               {DType::kF32, random_normal(22, size(s.hidden), 0.1f)}},
        x_(DType::kBF16, random_normal(20, size(kMaxRows * s.values))),
        // Factors are far from 1, and every row's from the others'.
        start_(DType::kBF16, uneven_rows(21, s.hidden)),
        embedded_(DType::kF32, uneven_rows(23, s.hidden)),
        residual_(DType::kBF16, size(kMaxRows * s.hidden)),
        delta_(DType::kF32, size(kMaxRows * s.hidden)),
        normed_(DType::kBF16, size(kMaxRows * s.hidden)),
        factors_(DType::kF32, size(kMaxRows) * std::size(norms_)),
        gate_y_(DType::kBF16, size(kMaxRows * s.wide)),
        up_y_(DType::kBF16, size(kMaxRows * s.wide)),
        keys_y_(DType::kBF16, size(kMaxRows * s.keys)),
        values_y_(DType::kBF16, size(kMaxRows * s.values)),
        first_keys_y_(DType::kBF16, size(kMaxRows * s.keys)),
        first_a_y_(DType::kF32, size(kMaxRows * s.gates)),
        a_y_(DType::kF32, size(kMaxRows * s.gates)),
        b_y_(DType::kF32, size(kMaxRows * s.gates)) {}

  void run(Backend& backend, const Pass& p) {
    backend.copy(residual_.data(), start_.data(), size(p.rows * s_.hidden) * 2);
    if (p.begin == Begin::kNormBehindLinear) {
      ops::linear(backend, args(p, out_, x_.data(), delta_, 8));
    }
    if (p.begin != Begin::kOwnLinears) {
      const float* factors = norm(backend, p, 3, embedded_, p.update, NormKind::kLeavesFactors);
      both(backend, {args(p, keys_, normed_.data(), first_keys_y_, 1, factors),
                     args(p, a_, normed_.data(), first_a_y_, 1, factors)});
    }
    ops::linear(backend, args(p, out_, x_.data(), delta_, 8));
    const float* factors =
        norm(backend, p, 0, delta_, ops::ResidualUpdate::kAdd, NormKind::kLeavesFactors);
    both(backend, {args(p, gate_, normed_.data(), gate_y_, 1, factors),
                   args(p, up_, normed_.data(), up_y_, 1, factors)});
    ops::silu_mul(backend, {.gate = gate_y_.data(),
                            .up = up_y_.data(),
                            .num_rows = p.rows,
                            .width = s_.wide,
                            .y = gate_y_.data()});
    ops::linear(backend, args(p, down_, gate_y_.data(), delta_, 8));
    factors = norm(backend, p, 1, delta_, ops::ResidualUpdate::kAdd, NormKind::kLeavesFactors);
    // Where the mixer's format is another, a_ and b_ read the same rows beside it.
    both(backend, {args(p, keys_, normed_.data(), keys_y_, 1, factors),
                   args(p, own_values_, normed_.data(), values_y_, 1, factors),
                   args(p, a_, normed_.data(), a_y_, 1, factors),
                   args(p, b_, normed_.data(), b_y_, 1, factors)});
    norm(backend, p, 2, delta_, ops::ResidualUpdate::kAdd, p.last);  // which no linear follows
  }

  // Results are another run's no more.
  void forget() {
    for (Array* a : outputs()) {
      for (std::size_t i = 0; i < a->size(); ++i) a->set(i, -77.0f);
    }
  }

  std::vector<float> results() {
    std::vector<float> all;
    for (const Array* a : outputs()) {
      const std::vector<float> values = a->values();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  void expect_guards() {
    for (const Array* a : outputs()) a->expect_guards("an output");
  }

 private:
  static std::size_t size(int n) { return static_cast<std::size_t>(n); }
  static std::vector<float> uneven_rows(std::uint64_t seed, int width) {
    std::vector<float> values = random_normal(seed, size(kMaxRows * width));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] *= 0.1f * static_cast<float>(1 + i / size(width));
    }
    return values;
  }
  std::vector<Array*> outputs() {
    return {&residual_, &delta_,        &normed_,    &factors_, &gate_y_,   &up_y_,
            &keys_y_,   &first_keys_y_, &first_a_y_, &a_y_,     &values_y_, &b_y_};
  }
  static ops::LinearArgs args(const Pass& p, const Weight& w, const void* x, Array& y, int leaves,
                              const float* factors = nullptr) {
    return {.x = x,
            .x_stride = w.view.in_features,
            .num_rows = p.rows,
            .weight = w.view,
            .num_leaves = leaves,
            .row_factors = factors,
            .y = y.data(),
            .y_dtype = y.dtype(),
            .y_stride = w.view.out_features};
  }
  static void both(Backend& backend, std::initializer_list<ops::LinearArgs> group) {
    ops::linear_group(backend, {group.begin(), group.size()});
  }
  // Returns where it leaves the rows' factors.
  const float* norm(Backend& backend, const Pass& p, std::size_t i, Array& delta,
                    ops::ResidualUpdate update, NormKind kind) {
    float* factors = factors_.floats() + (p.factors == Factors::kShared ? 0 : i * size(p.rows));
    if (kind == NormKind::kScales) factors = nullptr;
    ops::residual_rms_norm(backend, {.residual = residual_.data(),
                                     .delta = delta.floats(),
                                     .update = update,
                                     .weight = norms_[i].floats(),
                                     .num_rows = p.rows,
                                     .width = s_.hidden,
                                     .y = normed_.data(),
                                     .row_factors = factors});
    return factors;
  }

  Shape s_;
  Weight out_, gate_, up_, down_, keys_, own_values_, a_, b_;
  Array norms_[4];
  Array x_, start_, embedded_;
  Array residual_, delta_, normed_, factors_, gate_y_, up_y_, keys_y_, values_y_, first_keys_y_,
      first_a_y_, a_y_, b_y_;
};

std::vector<Pass> passes() {
  using enum ops::ResidualUpdate;
  std::vector<Pass> all;
  for (const int rows : {1, 8, 11, 16}) {
    for (const auto factors : {Factors::kShared, Factors::kOfEachNorm}) {
      for (const auto last : {NormKind::kScales, NormKind::kLeavesFactors}) {
        all.push_back({rows, Begin::kOwnLinears, kAdd, last, factors});
        for (const auto begin : {Begin::kNorm, Begin::kNormBehindLinear}) {
          for (const auto update : {kAdd, kReplace}) {
            all.push_back({rows, begin, update, last, factors});
          }
        }
      }
    }
  }
  return all;
}

std::string name(const Pass& p) {
  return fmt::format("{} rows, begin {}, update {}, last norm {}, factors {}", p.rows,
                     static_cast<int>(p.begin), static_cast<int>(p.update),
                     static_cast<int>(p.last), static_cast<int>(p.factors));
}

class LinearChain : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!on_gpu()) GTEST_SKIP() << "runs as cuda.kernels";
  }
};

TEST_F(LinearChain, GivesTheBitsOfItsOperatorsOneByOne) {
  const auto one_by_one = test_backend(1);
  cuda::CudaBackend joined({});
  for (const auto& [mixer, mlp] : {std::pair{WeightFormat::kBf16, WeightFormat::kBf16},
                                   {WeightFormat::kFp8Block, WeightFormat::kFp8Block},
                                   {WeightFormat::kFp8Block, WeightFormat::kNvfp4}}) {
    for (const auto& [hidden, wide, values, keys, gates] :
         {std::tuple{256, 1024, 1024, 100, 3}, {1280, 2048, 1024, 1500, 48}}) {
      Layer layer(*one_by_one, {hidden, wide, values, keys, gates, mixer, mlp});
      for (const Pass& pass : passes()) {
        const auto what = fmt::format("{}, hidden {}, formats {} and {}", name(pass), hidden,
                                      static_cast<int>(mixer), static_cast<int>(mlp));
        layer.forget();
        layer.run(*one_by_one, pass);
        const std::vector<float> expected = layer.results();
        // More than once: gates are handed on from kernel to kernel.
        for (int i = 0; i < 2; ++i) {
          layer.forget();
          layer.run(joined, pass);
          layer.run(joined, pass);
          joined.synchronize();
          ASSERT_EQ(first_difference(expected, layer.results()), "") << what;
        }
        const cuda::Graph graph = joined.capture([&] { layer.run(joined, pass); });
        layer.forget();
        for (int i = 0; i < 3; ++i) graph.launch(joined.stream());
        joined.synchronize();
        ASSERT_EQ(first_difference(expected, layer.results()), "") << "replayed, " << what;
        layer.expect_guards();
      }
    }
  }
}

// What was put off must not be lost, nor come after what was asked for later.
TEST_F(LinearChain, EverythingElseComesBehindWhatWasPutOff) {
  cuda::CudaBackend backend({});
  const Weight w(backend, 1, WeightFormat::kBf16, 300, 256);
  const Array x(DType::kBF16, random_normal(2, 256));
  Array y(DType::kF32, 300), copy(DType::kF32, 300), expected(DType::kF32, 300);
  const auto multiply = [&](Backend& b, Array& to) {
    ops::linear(b, {.x = x.data(),
                    .x_stride = 256,
                    .num_rows = 1,
                    .weight = w.view,
                    .y = to.data(),
                    .y_dtype = DType::kF32,
                    .y_stride = 300});
  };
  multiply(*test_backend(1), expected);
  multiply(backend, y);
  backend.copy(copy.data(), y.data(), 300 * sizeof(float));
  backend.synchronize();
  EXPECT_EQ(first_difference(copy.values(), expected.values()), "");
  multiply(backend, y);
  backend.mark(0);
  backend.wait_for_mark(0);
  EXPECT_EQ(first_difference(y.values(), expected.values()), "");
}

}  // namespace
}  // namespace tandem::testing
