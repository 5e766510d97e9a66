// Dummy weights in every format: of the size that keeps activations alive, and the same model
// whatever part of it a rank keeps. Looked at through the linear that computes with them.
#include "engine/dummy_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <set>
#include <string>

#include "kernels/backend.h"
#include "kernels/ops/linear.h"
#include "layers/weight_binder.h"
#include "tests/layers/layer_fixture.h"

namespace tandem {
namespace {

using testing::HeapAllocator;

constexpr std::int64_t kOut = 384, kIn = 384;

// Values [out, in] of a matrix: products with the rows of the identity, which no sum can round.
std::vector<float> values(Backend& backend, const ops::LinearWeight& weight) {
  const std::int64_t n = weight.out_features, k = weight.in_features;
  std::vector<float> identity(static_cast<std::size_t>(k * k));
  for (std::int64_t i = 0; i < k; ++i) identity[static_cast<std::size_t>(i * (k + 1))] = 1;
  std::vector<float> columns(static_cast<std::size_t>(k * n));
  ops::linear(backend, {.x = identity.data(),
                        .x_dtype = DType::kF32,
                        .x_stride = k,
                        .num_rows = static_cast<int>(k),
                        .weight = weight,
                        .y = columns.data(),
                        .y_dtype = DType::kF32,
                        .y_stride = n});
  std::vector<float> out(columns.size());
  for (std::int64_t i = 0; i < n * k; ++i) {
    out[static_cast<std::size_t>(i)] = columns[static_cast<std::size_t>(i % k * n + i / k)];
  }
  return out;
}

struct Matrix {
  ops::LinearWeight weight;
  std::vector<float> values;
};

class DummyFormats : public ::testing::TestWithParam<DummyFormat> {
 protected:
  Matrix bind(const std::string& name, std::vector<RowRange> rows, std::optional<ColRange> cols) {
    WeightBinder binder(memory_, {}, source_, BackendKind::kCpu);
    Matrix m{binder.matrix(name, kOut, kIn, std::move(rows), cols), {}};
    fill_dummy_weights(binder.requests(), *backend_);
    ops::prepack_weight(*backend_, m.weight);
    m.values = values(*backend_, m.weight);
    return m;
  }

  HeapAllocator memory_;
  DummyWeights source_{GetParam(), Checkpoint()};
  std::unique_ptr<Backend> backend_ = make_backend(BackendKind::kCpu, {.num_threads = 1});
};

constexpr const char* kNames[] = {
    "model.layers.0.mlp.up_proj.weight", "model.layers.0.linear_attn.in_proj_qkv.weight",
    "model.layers.0.linear_attn.in_proj_a.weight", "lm_head.weight", "mtp.fc.weight"};

TEST_P(DummyFormats, AllPartsAreOfOneMatrix) {
  const std::vector<std::vector<RowRange>> row_sets{
      {{0, kOut}}, {{192, 384}}, {{64, 128}, {256, 300}}};
  for (const std::string name : kNames) {
    const Matrix whole = bind(name, {}, std::nullopt);
    for (const auto& rows : row_sets) {
      for (const ColRange cols : {ColRange{0, kIn}, {192, 384}, {128, 320}}) {
        const Matrix part = bind(name, rows, cols);
        std::size_t i = 0;
        for (const auto& range : rows) {
          for (std::int64_t n = range.begin; n < range.end; ++n) {
            for (std::int64_t k = cols.begin; k < cols.end; ++k, ++i) {
              ASSERT_EQ(part.values[i], whole.values[static_cast<std::size_t>(n * kIn + k)])
                  << name << " [" << n << ", " << k << "]";
            }
          }
        }
      }
    }
  }
}

TEST_P(DummyFormats, ProductsKeepTheirSize) {
  for (const std::string name : kNames) {
    double sum = 0;
    std::set<std::vector<float>> rows;
    const Matrix m = bind(name, {}, std::nullopt);
    for (const float v : m.values) sum += double{v} * double{v};
    for (std::int64_t n = 0; n < kOut; ++n) {
      rows.emplace(m.values.begin() + n * kIn, m.values.begin() + (n + 1) * kIn);
    }
    // A handful of scales of 128 x 128 blocks, between half and one and a half of their mean.
    const double tolerance = GetParam() == DummyFormat::kFp8Block ? 0.3 : 0.1;
    EXPECT_NEAR(std::sqrt(sum / (kOut * kIn)) * std::sqrt(double{kIn}), 1, tolerance) << name;
    EXPECT_EQ(rows.size(), static_cast<std::size_t>(kOut)) << name << ": a row comes twice";
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, DummyFormats,
                         ::testing::Values(DummyFormat::kAuto, DummyFormat::kBf16,
                                           DummyFormat::kFp8Block, DummyFormat::kFp8Channel,
                                           DummyFormat::kNvfp4, DummyFormat::kInt8Group));

// What published checkpoints quantize, and what they leave alone.
TEST(DummyWeightsFormat, FollowsPublishedCheckpoints) {
  const auto format = [](DummyFormat choice, const std::string& name) {
    return DummyWeights(choice, Checkpoint()).find(name)->format;
  };
  const std::string layer = "model.layers.7.";
  for (const auto choice : {DummyFormat::kFp8Block, DummyFormat::kFp8Channel, DummyFormat::kNvfp4,
                            DummyFormat::kInt8Group}) {
    for (const std::string name : {"model.embed_tokens.weight", "model.norm.weight",
                                   "mtp.fc.weight", "model.layers.7.linear_attn.in_proj_b.weight",
                                   "model.layers.7.linear_attn.conv1d.weight"}) {
      EXPECT_EQ(format(choice, name), WeightFormat::kBf16) << name;
    }
    EXPECT_NE(format(choice, layer + "self_attn.o_proj.weight"), WeightFormat::kBf16);
  }
  EXPECT_EQ(format(DummyFormat::kNvfp4, layer + "mlp.down_proj.weight"), WeightFormat::kNvfp4);
  EXPECT_EQ(format(DummyFormat::kNvfp4, layer + "self_attn.q_proj.weight"),
            WeightFormat::kFp8Tensor);
  EXPECT_EQ(format(DummyFormat::kNvfp4, "lm_head.weight"), WeightFormat::kNvfp4);
  EXPECT_EQ(format(DummyFormat::kNvfp4, "mtp.layers.0.mlp.up_proj.weight"), WeightFormat::kBf16);
  EXPECT_EQ(format(DummyFormat::kFp8Block, "lm_head.weight"), WeightFormat::kBf16);
  EXPECT_EQ(format(DummyFormat::kFp8Block, "mtp.layers.0.mlp.up_proj.weight"),
            WeightFormat::kFp8Block);
}

}  // namespace
}  // namespace tandem
