// What the CUDA backend decides on the host: targets, orders of summation, spread over blocks.
// Needs no GPU.
#include <gtest/gtest.h>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/linear_plan.h"
#include "kernels/cuda/targets.h"

namespace tandem::cuda {
namespace {

TEST(CudaTargets, MachineCodeRunsWhereItWasMadeFor) {
  const char* both = "90a-real,121a-real,90-virtual";
  EXPECT_EQ(match_target(both, 9, 0), TargetMatch::kNative);
  EXPECT_EQ(match_target(both, 12, 1), TargetMatch::kNative);
  EXPECT_EQ(match_target(both, 12, 0), TargetMatch::kPtxOnly);  // 121a is for 12.1 alone
  EXPECT_EQ(match_target(both, 10, 0), TargetMatch::kPtxOnly);
  EXPECT_EQ(match_target(both, 8, 9), TargetMatch::kNone);
  EXPECT_EQ(match_target("90a-real", 12, 1), TargetMatch::kNone);
  EXPECT_EQ(match_target("90a", 9, 0), TargetMatch::kNative);
  EXPECT_EQ(match_target("90a-virtual", 10, 0), TargetMatch::kNone);
  EXPECT_EQ(match_target("120-real", 12, 1), TargetMatch::kNative);
  EXPECT_EQ(match_target("121-real", 12, 0), TargetMatch::kNone);
  EXPECT_EQ(match_target("", 9, 0), TargetMatch::kNone);
  EXPECT_EQ(describe_targets(both), "sm_90a sm_121a compute_90");
  EXPECT_FALSE(describe_targets(compiled_targets()).empty());
}

ops::LinearWeight bf16_weight(std::int64_t outs, std::int64_t columns) {
  return {.format = ops::WeightFormat::kBf16, .out_features = outs, .in_features = columns};
}

TEST(LinearPlan, StrandsCoverALeafInEqualParts) {
  for (const auto& [columns, leaves] :
       {std::pair{5120, 1}, {17408, 8}, {6144, 8}, {40, 1}, {64, 8}}) {
    const LinearOrder order = linear_order(bf16_weight(64, columns), DType::kBF16, leaves);
    ASSERT_EQ(order.path, LinearPath::kTensor);
    EXPECT_EQ(order.leaf_columns * leaves, columns);
    EXPECT_GE(order.strands_per_leaf * order.strand_columns, order.leaf_columns);
    EXPECT_LT((order.strands_per_leaf - 1) * order.strand_columns, order.leaf_columns);
    EXPECT_EQ(order.strand_columns % kLinearStep, 0);
    EXPECT_LE(order.strand_columns, 512);
  }
}

// A rank with a part of the leaves must sum each of them as one rank with all does.
TEST(LinearPlan, ALeafsOrderDoesNotDependOnTheNumberOfLeaves) {
  const LinearOrder whole = linear_order(bf16_weight(64, 17408), DType::kBF16, 8);
  for (const int ranks : {2, 4, 8}) {
    const LinearOrder part = linear_order(bf16_weight(64, 17408 / ranks), DType::kBF16, 8 / ranks);
    EXPECT_EQ(part.path, whole.path);
    EXPECT_EQ(part.leaf_columns, whole.leaf_columns);
    EXPECT_EQ(part.strand_columns, whole.strand_columns);
    EXPECT_EQ(part.strands_per_leaf, whole.strands_per_leaf);
  }
}

TEST(LinearPlan, ScalesStayWholeInAStrand) {
  ops::LinearWeight w{.format = ops::WeightFormat::kFp8Block,
                      .out_features = 128,
                      .in_features = 17408,
                      .block_rows = 128,
                      .block_cols = 128};
  const LinearOrder order = linear_order(w, DType::kBF16, 8);
  EXPECT_EQ(order.path, LinearPath::kTensor);
  EXPECT_EQ(order.strand_columns % 128, 0);
  EXPECT_EQ(order.scale_columns, 128);
  w.in_features = 8 * 112;  // leaves cut blocks of 128
  EXPECT_EQ(linear_order(w, DType::kBF16, 8).path, LinearPath::kPlain);
}

TEST(LinearPlan, RowsAndLimitsChooseTheKernelOnly) {
  const LinearOrder order = linear_order(bf16_weight(5120, 17408), DType::kBF16, 8);
  const auto plan = [&](int rows, bool aligned, std::size_t limit) {
    return plan_linear(order, ops::WeightFormat::kBf16, rows, aligned, limit);
  };
  EXPECT_EQ(plan(1, true, 101376).row_tiles, 1);
  EXPECT_EQ(plan(16, true, 101376).row_tiles, 2);
  EXPECT_EQ(plan(32, true, 101376).kernel, LinearKernel::kNarrow);
  EXPECT_EQ(plan(33, true, 101376).kernel, LinearKernel::kWide);
  EXPECT_EQ(plan(512, false, 101376).kernel, LinearKernel::kNarrow);
  for (const int rows : {1, 8, 9, 16, 17, 32, 33, 2048}) {
    for (const std::size_t limit : {std::size_t{101376}, std::size_t{232448}}) {
      EXPECT_LE(plan(rows, true, limit).shared_bytes, limit) << rows;
      EXPECT_LE(plan(rows, true, limit).warps, 16) << rows;
    }
  }
}

TEST(AttentionPlan, ColumnsFitAndSplitsNeedScratch) {
  AttentionSize size{.path = AttentionPath::kTensor,
                     .num_rows = 32,
                     .num_segments = 8,
                     .num_kv_heads = 4,
                     .group = 6,
                     .head_dim = 256,
                     .max_context = 32768};
  AttentionPlan plan = plan_attention(size, 132);
  EXPECT_EQ(plan.rows_per_block, 4);  // a segment's
  EXPECT_EQ(plan.row_blocks, 8);
  EXPECT_EQ(plan.splits, 1);
  EXPECT_LE(plan.shared_bytes, std::size_t{101376});
  size.scratch_bytes = std::size_t{1} << 40;
  plan = plan_attention(size, 132);
  EXPECT_GT(plan.splits, 1);
  EXPECT_LE(plan.splits, num_spans(size.max_context));
  size.group = 64;
  plan = plan_attention(size, 132);
  EXPECT_EQ(plan.head_blocks, 2);
  EXPECT_EQ(plan.rows_per_block, 1);
  EXPECT_LE(plan.rows_per_block * plan.heads_per_block, 8 * plan.tiles);
}

}  // namespace
}  // namespace tandem::cuda
