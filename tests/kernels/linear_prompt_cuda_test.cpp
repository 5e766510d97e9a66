// Prompt linears of the CUDA backend: which kernel serves (needs no GPU), and capture in a graph.
#include <gtest/gtest.h>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/linear_prompt_plan.h"
#include "kernels/cuda/targets.h"
#include "tests/kernels/op_check.h"

namespace tandem::cuda {
namespace {

constexpr DeviceLimits kHopper{.num_processors = 132,
                               .shared_bytes_per_block = 232448,
                               .compute_major = 9,
                               .compute_minor = 0,
                               .warpgroup_products = true};

ops::LinearWeight bf16_weight(std::int64_t outs, std::int64_t columns) {
  return {.format = ops::WeightFormat::kBf16, .out_features = outs, .in_features = columns};
}

LinearOrder order_of(const ops::LinearWeight& weight, int leaves) {
  return linear_order(weight, DType::kBF16, leaves);
}

TEST(CudaTargets, OwnInstructionsNeedMachineCodeOfTheLetterA) {
  EXPECT_TRUE(has_own_instructions("90a-real,121a-real,90-virtual", 9, 0));
  EXPECT_TRUE(has_own_instructions("90a", 9, 0));
  EXPECT_FALSE(has_own_instructions("90-real,90-virtual", 9, 0));
  EXPECT_FALSE(has_own_instructions("90a-virtual", 9, 0));
  EXPECT_FALSE(has_own_instructions("121a-real", 9, 0));
  EXPECT_FALSE(has_own_instructions("", 9, 0));
}

TEST(LinearPromptPlan, ServesByWeightAndGpuAlone) {
  const auto serves = [](const DeviceLimits& limits, const ops::LinearWeight& weight, int leaves) {
    return prompt_tiles_serve(limits, order_of(weight, leaves), weight);
  };
  for (const int leaves : {1, 2, 4, 8}) {
    EXPECT_TRUE(serves(kHopper, bf16_weight(5120, 17408), leaves));
    EXPECT_TRUE(serves(kHopper, bf16_weight(5120, 6144), leaves));
  }
  // A part of the leaves is served as the whole is.
  EXPECT_TRUE(serves(kHopper, bf16_weight(5120, 2176), 1));
  EXPECT_FALSE(serves(kHopper, bf16_weight(64, 8 * 136), 8));
  EXPECT_FALSE(serves(kHopper, bf16_weight(64, 136), 1));
  constexpr DeviceLimits kGb10{.num_processors = 48,
                               .shared_bytes_per_block = 101376,
                               .compute_major = 12,
                               .compute_minor = 1};
  EXPECT_FALSE(serves(kGb10, bf16_weight(5120, 17408), 1));
  ops::LinearWeight block{.format = ops::WeightFormat::kFp8Block,
                          .out_features = 5120,
                          .in_features = 17408,
                          .block_rows = 128,
                          .block_cols = 128};
  EXPECT_TRUE(serves(kHopper, block, 8));
  block.block_rows = 64;  // a tile's outputs would have two scales
  EXPECT_FALSE(serves(kHopper, block, 8));
}

TEST(LinearPromptPlan, TilesHaveRoomForTheTreeAndFillTheProcessors) {
  const auto tile = [](std::int64_t outs, std::int64_t columns, int leaves, int rows) {
    const ops::LinearWeight weight = bf16_weight(outs, columns);
    return prompt_tile_outs(order_of(weight, leaves), weight, rows, kHopper.num_processors);
  };
  EXPECT_EQ(tile(17408, 5120, 1, 2048), PromptTile::k256);
  EXPECT_EQ(tile(5120, 5120, 1, 100), PromptTile::k128);  // 20 wide tiles would leave 112 idle
  for (const int leaves : {1, 2, 4, 8, 16, 32, 64}) {
    for (const int rows : {1, 300, 2048}) {
      const auto outs = static_cast<int>(tile(5120, 6144, leaves, rows));
      EXPECT_GE(1 << prompt_tree_levels(outs), leaves) << leaves << " leaves, " << rows << " rows";
    }
  }
}

// The kernel's maps of its operands are parameters: a graph that was captured before the operands
// are filled reads what is there when it is launched.
TEST(LinearPrompt, ReplaysFromAGraph) {
  if (!testing::on_gpu()) GTEST_SKIP() << "no CUDA device under test";
  constexpr int kRows = 70, kOuts = 200, kColumns = 512;
  CudaBackend backend({});
  testing::Array x(DType::kBF16, testing::random_normal(1, kRows * kColumns));
  testing::Array w(DType::kBF16, testing::random_normal(2, kOuts * kColumns));
  testing::Array y(DType::kF32, kRows * kOuts);
  const std::size_t x_bytes = kRows * kColumns * 2, w_bytes = kOuts * kColumns * 2;
  void* device_x = backend.allocate(x_bytes);
  void* device_w = backend.allocate(w_bytes);
  backend.copy(device_w, w.data(), w_bytes);
  const auto multiply = [&] {
    ops::linear(backend, {.x = device_x,
                          .x_stride = kColumns,
                          .num_rows = kRows,
                          .weight = {.format = ops::WeightFormat::kBf16,
                                     .out_features = kOuts,
                                     .in_features = kColumns,
                                     .data = device_w},
                          .row_class = ops::RowClass::kPrompt,
                          .num_leaves = 2,
                          .y = y.data(),
                          .y_dtype = DType::kF32,
                          .y_stride = kOuts});
  };
  const auto graph = backend.capture(multiply);
  std::vector<float> before;
  for (std::uint64_t seed = 10; seed < 12; ++seed) {
    const auto fresh = testing::random_normal(seed, kRows * kColumns);
    for (std::size_t i = 0; i < fresh.size(); ++i) x.set(i, fresh[i]);
    backend.copy(device_x, x.data(), x_bytes);
    graph.launch(backend.stream());
    backend.synchronize();
    const std::vector<float> replayed = y.values();
    multiply();
    backend.synchronize();
    EXPECT_EQ(testing::first_difference(replayed, y.values()), "");
    EXPECT_NE(replayed, before);
    before = replayed;
  }
  backend.deallocate(device_x, x_bytes);
  backend.deallocate(device_w, w_bytes);
}

}  // namespace
}  // namespace tandem::cuda
