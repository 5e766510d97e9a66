// Operators of few rows that are launched as one kernel (cuda/linear_chain.h): to the bit what they
// give one by one, replayed or not.
#include <gtest/gtest.h>

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
  int rows, hidden, wide, values, keys, gates;
  WeightFormat mixer, mlp;
};

// What a decoder layer does between its mixer and the next one's.
class Layer {
 public:
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
               {DType::kF32, random_normal(19, size(s.hidden), 0.1f)}},
        x_(DType::kBF16, random_normal(20, size(s.rows * s.values))),
        start_(DType::kBF16, random_normal(21, size(s.rows * s.hidden))),
        residual_(DType::kBF16, size(s.rows * s.hidden)),
        delta_(DType::kF32, size(s.rows * s.hidden)),
        normed_(DType::kBF16, size(s.rows * s.hidden)),
        gate_y_(DType::kBF16, size(s.rows * s.wide)),
        up_y_(DType::kBF16, size(s.rows * s.wide)),
        keys_y_(DType::kBF16, size(s.rows * s.keys)),
        values_y_(DType::kBF16, size(s.rows * s.values)),
        a_y_(DType::kF32, size(s.rows * s.gates)),
        b_y_(DType::kF32, size(s.rows * s.gates)) {}

  void run(Backend& backend) {
    backend.copy(residual_.data(), start_.data(), size(s_.rows * s_.hidden) * 2);
    ops::linear(backend, args(out_, x_, delta_, 8));
    norm(backend, 0);
    both(backend, {args(gate_, normed_, gate_y_, 1), args(up_, normed_, up_y_, 1)});
    ops::silu_mul(backend, {.gate = gate_y_.data(),
                            .up = up_y_.data(),
                            .num_rows = s_.rows,
                            .width = s_.wide,
                            .y = gate_y_.data()});
    ops::linear(backend, args(down_, gate_y_, delta_, 8));
    norm(backend, 1);
    both(backend, {args(keys_, normed_, keys_y_, 1), args(own_values_, normed_, values_y_, 1),
                   args(a_, normed_, a_y_, 1), args(b_, normed_, b_y_, 1)});
    norm(backend, 2);  // which no linear follows
  }

  std::vector<float> results() const {
    std::vector<float> all;
    for (const Array* a :
         {&residual_, &delta_, &normed_, &gate_y_, &up_y_, &keys_y_, &values_y_, &a_y_, &b_y_}) {
      const std::vector<float> values = a->values();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

 private:
  static std::size_t size(int n) { return static_cast<std::size_t>(n); }
  ops::LinearArgs args(const Weight& w, const Array& x, Array& y, int leaves) const {
    return {.x = x.data(),
            .x_stride = w.view.in_features,
            .num_rows = s_.rows,
            .weight = w.view,
            .num_leaves = leaves,
            .y = y.data(),
            .y_dtype = y.dtype(),
            .y_stride = w.view.out_features};
  }
  static void both(Backend& backend, std::initializer_list<ops::LinearArgs> group) {
    ops::linear_group(backend, {group.begin(), group.size()});
  }
  void norm(Backend& backend, std::size_t i) {
    ops::residual_rms_norm(backend, {.residual = residual_.data(),
                                     .delta = delta_.floats(),
                                     .weight = norms_[i].floats(),
                                     .num_rows = s_.rows,
                                     .width = s_.hidden,
                                     .y = normed_.data()});
  }

  Shape s_;
  Weight out_, gate_, up_, down_, keys_, own_values_, a_, b_;
  Array norms_[3];
  Array x_, start_, residual_, delta_, normed_, gate_y_, up_y_, keys_y_, values_y_, a_y_, b_y_;
};

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
      for (const int rows : {1, 11}) {
        Layer layer(*one_by_one, {rows, hidden, wide, values, keys, gates, mixer, mlp});
        layer.run(*one_by_one);
        const std::vector<float> expected = layer.results();
        // More than once: gates are handed on from kernel to kernel.
        for (int i = 0; i < 2; ++i) {
          layer.run(joined);
          layer.run(joined);
          joined.synchronize();
          ASSERT_EQ(first_difference(expected, layer.results()), "")
              << "rows " << rows << ", hidden " << hidden << ", format " << static_cast<int>(mlp);
        }
        const cuda::Graph graph = joined.capture([&] { layer.run(joined); });
        for (int i = 0; i < 3; ++i) graph.launch(joined.stream());
        joined.synchronize();
        ASSERT_EQ(first_difference(expected, layer.results()), "")
            << "replayed, rows " << rows << ", hidden " << hidden;
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
