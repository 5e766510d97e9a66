// Prompt linears of the CUDA backend: which kernel serves (needs no GPU), and capture in a graph.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/linear_prompt_plan.h"
#include "kernels/cuda/targets.h"
#include "tests/kernels/op_check.h"
#include "tests/kernels/quantized_weight.h"

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

ops::LinearWeight int8_weight(std::int64_t outs, std::int64_t columns, int group) {
  return {.format = ops::WeightFormat::kInt8Group,
          .out_features = outs,
          .in_features = columns,
          .block_rows = 1,
          .block_cols = group};
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
  for (const int group : {32, 64, 128, 192, 256}) {
    EXPECT_TRUE(serves(kHopper, int8_weight(5120, 6144, group), 1)) << group;
    EXPECT_TRUE(serves(kHopper, int8_weight(5120, 8 * 2 * group, group), 8)) << group;
    EXPECT_TRUE(serves(kHopper, int8_weight(5120, 3 * group + 16, group), 1)) << group;
    EXPECT_FALSE(serves(kHopper, int8_weight(5120, 2 * (group + 16), group), 2)) << group;
    EXPECT_FALSE(serves(kHopper, int8_weight(5120, 3 * group + 8, group), 1)) << group;
    EXPECT_FALSE(serves(kGb10, int8_weight(5120, 6144, group), 1)) << group;
  }
  for (const int group : {8, 16, 48, 96, 160}) {  // parts of stages, but no halves
    EXPECT_FALSE(serves(kHopper, int8_weight(5120, 6144 / group * group, group), 1)) << group;
  }
  ops::LinearWeight pairs = int8_weight(5120, 6144, 128);
  pairs.block_rows = 2;
  EXPECT_FALSE(serves(kHopper, pairs, 1));
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

TEST(LinearPromptPlan, ScalesOfGroupsHaveRoomInTheirStages) {
  const auto tile = [](int group, int leaves) {
    const ops::LinearWeight weight = int8_weight(17408, 4096, group);
    return prompt_tile_outs(order_of(weight, leaves), weight, 2048, kHopper.num_processors);
  };
  EXPECT_EQ(tile(128, 8), PromptTile::k128);
  EXPECT_EQ(tile(64, 1), PromptTile::k128);
  EXPECT_EQ(tile(32, 1), PromptTile::k64);
  EXPECT_EQ(tile(128, 16), PromptTile::k64);
}

// An output of INT8 group as kernels have to add it up: group after group, leaves as a tree. x
// holds integers, so that the sums of a group's products are exact.
float add_groups(const testing::Quantized& q, int out, const int* x, int leaves) {
  const auto columns = static_cast<int>(q.weight.in_features);
  const int group = q.weight.block_cols, leaf_columns = columns / leaves;
  const int per_row = (columns + group - 1) / group;
  const auto* codes = reinterpret_cast<const std::int8_t*>(q.codes.data()) + out * columns;
  const auto scale_of = [&q](int i) {
    const void* scales = q.scales.data();
    return q.weight.scale_dtype == DType::kF32 ? static_cast<const float*>(scales)[i]
                                               : to_float(static_cast<const bf16*>(scales)[i]);
  };
  std::vector<float> sums;
  for (int end = leaf_columns; end <= columns; end += leaf_columns) {
    float sum = 0.0f;
    for (int k = end - leaf_columns; k < end; k += group) {
      int part = 0;
      for (int i = k; i < std::min(k + group, end); ++i) part += x[i] * codes[i];
      sum = std::fma(static_cast<float>(part), scale_of(out * per_row + k / group), sum);
    }
    sums.push_back(sum);
  }
  for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
    for (std::size_t i = 0; i < sums.size() / 2; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
  }
  return sums[0];
}

void check_order_of_groups(DType scale_dtype, int group, int columns, int leaves) {
  constexpr int kRows = 130, kOuts = 200;
  CudaBackend backend({});
  testing::Quantized q = testing::quantize_at_random(ops::WeightFormat::kInt8Group, scale_dtype,
                                                     kOuts, columns, 1, group, 1.0f);
  q.weight.data = q.codes.data();
  q.weight.scales = q.scales.data();
  std::vector<int> x;
  std::vector<bf16> x_values;
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(kRows * columns); ++i) {
    x.push_back(static_cast<int>(i * 2654435761u >> 29) - 3);
    x_values.push_back(to_bf16(static_cast<float>(x.back())));
  }
  std::vector<float> expected;
  for (int row = 0; row < kRows; ++row) {
    for (int out = 0; out < kOuts; ++out) {
      expected.push_back(add_groups(q, out, x.data() + row * columns, leaves));
    }
  }
  const std::size_t bytes = x_values.size() * sizeof(bf16);
  void* device_x = backend.allocate(bytes);
  backend.copy(device_x, x_values.data(), bytes);
  for (const auto row_class : {ops::RowClass::kPrompt, ops::RowClass::kGenerated}) {
    const int rows = row_class == ops::RowClass::kPrompt ? kRows : 3;
    testing::Array y(DType::kF32, static_cast<std::size_t>(rows * kOuts));
    ops::linear(backend, {.x = device_x,
                          .x_stride = columns,
                          .num_rows = rows,
                          .weight = q.weight,
                          .row_class = row_class,
                          .num_leaves = leaves,
                          .y = y.data(),
                          .y_dtype = DType::kF32,
                          .y_stride = kOuts});
    backend.synchronize();
    const std::vector<float> first_rows(expected.begin(), expected.begin() + rows * kOuts);
    EXPECT_EQ(testing::first_difference(y.values(), first_rows), "")
        << "groups of " << group << ", " << columns << " columns, " << leaves << " leaves, " << rows
        << " rows";
  }
  backend.deallocate(device_x, bytes);
}

// No leaf is longer here than the strands of generated rows, which therefore have the same order.
TEST(LinearPrompt, AddsScaledGroupsInTheirOrder) {
  if (!testing::on_gpu()) GTEST_SKIP() << "no CUDA device under test";
  for (const int group : {32, 64, 96, 128, 192}) {
    check_order_of_groups(DType::kBF16, group, 464, 1);
    for (const int leaves : {1, 2, 8, 16}) {
      check_order_of_groups(DType::kF32, group, 384 * leaves, leaves);
    }
  }
  check_order_of_groups(DType::kF32, 32, 4 * 96, 4);  // leaves that end in the middle of a stage
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
