// What the CUDA backend decides on the host: targets, orders of summation, spread over blocks.
// Needs no GPU.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <tuple>
#include <vector>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/gated_delta_mix_plan.h"
#include "kernels/cuda/linear_plan.h"
#include "kernels/cuda/linear_stream_plan.h"
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

// The shapes of Qwen3.8-27B, whole and split over ranks, take one kernel.
TEST(MixPlan, KnownModelsFit) {
  ops::GatedDeltaMixArgs fitting;
  fitting.conv.max_round_rows = 8;
  fitting.rule.batch = {.row_class = ops::RowClass::kGenerated, .num_rows = 1, .num_segments = 1};
  for (const int ranks : {16, 8, 4, 2, 1}) {
    fitting.rule.shape = {
        .num_k_heads = 16 / ranks, .num_v_heads = 48 / ranks, .k_dim = 128, .v_dim = 128};
    fitting.conv.channels = static_cast<int>(fitting.rule.shape.channels());
    fitting.conv.u_stride = fitting.conv.channels;
    EXPECT_TRUE(mixes_at_once(fitting)) << ranks;
  }
  using Args = ops::GatedDeltaMixArgs;
  for (const auto& spoil : std::vector<std::function<void(Args&)>>{
           [](Args& a) { a.conv.max_round_rows = 9; }, [](Args& a) { a.conv.kernel = 3; },
           [](Args& a) { a.conv.u_stride += 8; }, [](Args& a) { a.rule.shape.k_dim = 112; },
           [](Args& a) { a.rule.shape.v_dim = 144; },
           [](Args& a) { a.rule.shape.num_v_heads = 80; },
           [](Args& a) { a.rule.batch.row_class = ops::RowClass::kPrompt; },
           [](Args& a) { a.conv.u = reinterpret_cast<const void*>(8); }}) {
    Args args = fitting;
    spoil(args);
    EXPECT_FALSE(mixes_at_once(args));
  }
}

// A whole head to a block where there are two for every processor.
TEST(MixPlan, ManySequencesAreMixedByHeads) {
  constexpr int kHopper = 132;
  const auto by_heads = [](int segments, int ranks) {
    ops::GatedDeltaMixArgs args;
    args.rule.batch.num_segments = segments;
    args.rule.shape = {
        .num_k_heads = 16 / ranks, .num_v_heads = 48 / ranks, .k_dim = 128, .v_dim = 128};
    return mixes_by_heads(args, kHopper);
  };
  EXPECT_FALSE(by_heads(1, 1));
  EXPECT_FALSE(by_heads(4, 1));
  EXPECT_TRUE(by_heads(8, 1));
  EXPECT_FALSE(by_heads(8, 2));
  EXPECT_TRUE(by_heads(16, 2));
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
    }
  }
}

// Blocks of a layer's linears on 132 processors with 64 registers a thread.
TEST(LinearPlan, WarpsFillTheLastWave) {
  const auto warps = [](int strands, int blocks, int registers) {
    return narrow_warps(strands, blocks, 16,
                        {.registers = registers,
                         .shared_bytes = static_cast<std::size_t>(strands) * 512,
                         .num_processors = 132,
                         .shared_bytes_per_processor = 232448});
  };
  EXPECT_EQ(warps(10, 1030, 64), 10);
  // Sixteen strands of 320 blocks: two rounds in one wave instead of one round in two.
  EXPECT_EQ(warps(16, 320, 64), 8);
  // With many registers a block of ten warps would be alone on its processor.
  EXPECT_EQ(warps(10, 1088, 104), 5);
  EXPECT_EQ(warps(1, 5, 64), 1);
}

ops::LinearArgs args_of(ops::WeightFormat format, std::int64_t outs, std::int64_t columns, int rows,
                        int leaves) {
  ops::LinearArgs args{.x_stride = columns,
                       .num_rows = rows,
                       .weight = {.format = format, .out_features = outs, .in_features = columns},
                       .num_leaves = leaves};
  if (format == ops::WeightFormat::kFp8Block) args.weight.block_rows = args.weight.block_cols = 128;
  if (format == ops::WeightFormat::kNvfp4) {
    args.weight.block_rows = 1, args.weight.block_cols = 16;
    args.weight.scale_dtype = DType::kF8E4M3;
  }
  return args;
}

TEST(StreamPlan, BoxesHoldEveryOutputOnceAndTheRingFits) {
  using ops::WeightFormat;
  struct Device {
    int processors;
    std::size_t shared_bytes;
  };
  for (const Device device : {Device{132, 232448}, {48, 101376}}) {
    for (const WeightFormat format :
         {WeightFormat::kBf16, WeightFormat::kFp8Block, WeightFormat::kNvfp4}) {
      for (const auto& [outs, columns, leaves] :
           {std::tuple{std::vector{10240, 6144, 48, 48}, 5120, 1},
            {std::vector{17408, 17408}, 5120, 1},
            {std::vector{5120}, 17408, 8},
            {std::vector{5120}, 6144, 8},
            {std::vector{248320}, 5120, 1},
            {std::vector{1, 7, 70, 3}, 256, 1}}) {
        for (const int rows : {1, 8, 9, 16}) {
          std::vector<ops::LinearArgs> group;
          for (const int n : outs) group.push_back(args_of(format, n, columns, rows, leaves));
          const LinearOrder order = linear_order(group[0].weight, DType::kBF16, leaves);
          ASSERT_TRUE(stream_serves(order, group[0]));
          const ChainLink link{group, order};
          const ChainPlan chain = plan_chain({&link, 1}, device.processors, device.shared_bytes);
          const StreamPlan& plan = chain.links[0];
          for (std::size_t i = 0; i < group.size(); ++i) {
            const std::int64_t held =
                std::int64_t{device.processors} * plan.sweeps * plan.box_rows[i];
            EXPECT_GE(held, outs[i]);
            EXPECT_LE(plan.box_rows[i], 256);  // of the copy engine
            const int next = i + 1 < group.size() ? plan.first_row[i + 1] : plan.chunk_rows;
            EXPECT_GE(next - plan.first_row[i], plan.box_rows[i]);
          }
          EXPECT_EQ(plan.chunk_rows % 8, 0);  // where chunks begin, and swizzling anew
          EXPECT_LE(plan.tiles, kStreamMaxTiles);
          EXPECT_LE(plan.multiplying_warps(), chain.ring.warps);
          EXPECT_TRUE(chain_streams(chain));
          EXPECT_EQ(chain.ring.stages % plan.turns, 0);
          EXPECT_LE(plan.stage_bytes(), chain.ring.stage_bytes);
          EXPECT_GE(plan.strand_stages() * plan.stage_chunks, plan.chunks);
          EXPECT_LE(chain.ring.shared_bytes, device.shared_bytes);
          // Two blocks on one processor would leave another one without.
          if (outs[0] > 5000) {
            EXPECT_GT(2 * chain.ring.shared_bytes, device.shared_bytes);
          }
        }
      }
    }
  }
}

TEST(StreamPlan, OnlyALinearThatReadsNothingOfTheNormFoldsForIt) {
  constexpr int kRows = 3, kWidth = 128;
  std::uint16_t x[kRows * 256], residual[kRows * kWidth], normed[kRows * kWidth];
  float delta[kRows * kWidth];
  ops::LinearArgs linear = args_of(ops::WeightFormat::kBf16, kWidth, 256, kRows, 1);
  linear.x = x;
  linear.y = delta;
  linear.y_dtype = DType::kF32;
  linear.y_stride = kWidth;
  const ops::ResidualRmsNormArgs norm{
      .residual = residual, .delta = delta, .num_rows = kRows, .width = kWidth, .y = normed};
  const auto folds = [&](const std::function<void(ops::LinearArgs&)>& change) {
    ops::LinearArgs changed = linear;
    change(changed);
    return stream_folds({&changed, 1}, norm);
  };
  EXPECT_TRUE(folds([](ops::LinearArgs&) {}));
  EXPECT_FALSE(folds([&](ops::LinearArgs& a) { a.x = normed; }));
  EXPECT_FALSE(folds([&](ops::LinearArgs& a) { a.x = residual; }));
  EXPECT_FALSE(folds([&](ops::LinearArgs& a) { a.y = delta + 1; }));
  EXPECT_FALSE(folds([](ops::LinearArgs& a) { a.y_dtype = DType::kBF16; }));
  EXPECT_FALSE(folds([](ops::LinearArgs& a) { a.y_stride += 1; }));
  EXPECT_FALSE(folds([](ops::LinearArgs& a) { a.num_rows = 2; }));
  EXPECT_FALSE(folds([](ops::LinearArgs& a) { a.weight.out_features = kWidth - 1; }));
  const ops::LinearArgs two[] = {linear, linear};
  EXPECT_FALSE(stream_folds(two, norm));
}

// The linears between a mixer and the next one, as a decoder layer has them.
TEST(StreamPlan, ALayersLinearsStreamAsOneChain) {
  using ops::WeightFormat;
  struct Device {
    int processors;
    std::size_t shared_bytes;
  };
  for (const Device device : {Device{132, 232448}, {48, 101376}}) {
    for (const auto& [mlp, other] : {std::pair{WeightFormat::kBf16, WeightFormat::kBf16},
                                     {WeightFormat::kFp8Block, WeightFormat::kFp8Block},
                                     {WeightFormat::kNvfp4, WeightFormat::kFp8Block}}) {
      for (const int rows : {1, 8, 16}) {
        const std::vector<std::vector<ops::LinearArgs>> groups = {
            {args_of(other, 5120, 6144, rows, 8)},
            {args_of(mlp, 17408, 5120, rows, 1), args_of(mlp, 17408, 5120, rows, 1)},
            {args_of(mlp, 5120, 17408, rows, 8)},
            {args_of(other, 10240, 5120, rows, 1), args_of(other, 6144, 5120, rows, 1)},
            {args_of(WeightFormat::kBf16, 48, 5120, rows, 1),
             args_of(WeightFormat::kBf16, 48, 5120, rows, 1)}};
        std::vector<ChainLink> links;
        int strands = 0, turns = 1;
        for (const auto& group : groups) {
          const LinearOrder order =
              linear_order(group[0].weight, DType::kBF16, group[0].num_leaves);
          links.push_back({.group = group,
                           .order = order,
                           .has_norm = links.size() == 1 || links.size() == 3,
                           .is_beside = links.size() == 4});
        }
        const ChainPlan chain = plan_chain(links, device.processors, device.shared_bytes);
        EXPECT_TRUE(chain_streams(chain));
        EXPECT_LE(chain.ring.shared_bytes, device.shared_bytes);
        for (std::size_t i = 0; i < links.size(); ++i) {
          const StreamPlan& plan = chain.links[i];
          EXPECT_EQ(plan.first_strand, strands);
          strands += links[i].order.num_strands() + kStreamSpareStrands;
          turns = std::max(turns, plan.turns);
          EXPECT_LE(plan.stage_bytes(), chain.ring.stage_bytes);
          EXPECT_LE(plan.tiles, chain.ring.max_tiles);
          EXPECT_LE(plan.multiplying_warps(), chain.ring.warps);
          EXPECT_LE(plan.first_block + plan.num_blocks, device.processors);
          for (std::size_t n = 0; n < groups[i].size(); ++n) {
            EXPECT_GE(plan.num_blocks * plan.sweeps * plan.box_rows[n],
                      groups[i][n].weight.out_features);
          }
        }
        // Where there are many blocks, those that start late or find factors have no outputs, and
        // few do the small linears meanwhile.
        const bool many = device.processors > 100;
        EXPECT_EQ(chain.links[0].works(device.processors - 1), !many);
        EXPECT_EQ(chain.links[1].works(device.processors - 1), !many);
        EXPECT_TRUE(chain.links[2].works(device.processors - 1));
        EXPECT_EQ(chain.links[3].works(device.processors - 1), !many);
        EXPECT_TRUE(chain.links[4].works(device.processors - 1));
        EXPECT_EQ(chain.links[4].works(0), !many);
        EXPECT_EQ(chain.ring.num_strands, strands);
        EXPECT_EQ(chain.ring.stages % turns, 0);
        if (!many) continue;
        // What is there of shared memory is used: by stages, or by chunks of them. Beside BF16 a
        // block of the mixer fits.
        const ChainPlan start =
            plan_chain({links.data(), 3}, device.processors, device.shared_bytes);
        EXPECT_EQ(start.ring.stages, chain.codes ? 8 : 10);
        EXPECT_GE(chain.ring.stages, 8);
        EXPECT_GE(chain.links[2].stage_chunks, 2);
        if (!chain.codes && rows <= 8) {
          EXPECT_LE(chain.ring.shared_bytes + kMixStripsBytes + 1024, device.shared_bytes);
        }
      }
    }
  }
}

TEST(StreamPlan, ServesWhatTheCopyEngineAndWholeStepsAllow) {
  using ops::WeightFormat;
  const auto serves = [](ops::LinearArgs args) {
    return stream_serves(linear_order(args.weight, DType::kBF16, args.num_leaves), args);
  };
  const ops::LinearArgs good = args_of(WeightFormat::kBf16, 100, 5120, 16, 8);
  EXPECT_TRUE(serves(good));
  ops::LinearArgs bad = good;
  bad.num_rows = 17;
  EXPECT_FALSE(serves(bad));
  bad = good;
  bad.x_stride += 1;
  EXPECT_FALSE(serves(bad));
  bad.num_rows = 1;  // a row alone has no stride
  EXPECT_TRUE(serves(bad));
  bad = good;
  bad.x = reinterpret_cast<const void*>(8);
  EXPECT_FALSE(serves(bad));
  EXPECT_FALSE(serves(args_of(WeightFormat::kBf16, 100, 96, 1, 1)));
  EXPECT_FALSE(serves(args_of(WeightFormat::kBf16, 100, 8 * 32, 1, 8)));
  EXPECT_TRUE(serves(args_of(WeightFormat::kNvfp4, 100, 8 * 384, 1, 8)));  // one chunk and a half
  EXPECT_FALSE(serves(args_of(WeightFormat::kNvfp4, 100, 8 * 192, 1, 8)));
  EXPECT_TRUE(serves(args_of(WeightFormat::kFp8Channel, 100, 8 * 192, 1, 8)));
  EXPECT_FALSE(serves(args_of(WeightFormat::kFp8Block, 100, 320, 1, 1)));  // a scale cut short
  ops::LinearArgs f32 = good;
  f32.weight.format = WeightFormat::kF32;
  EXPECT_FALSE(serves(f32));
}

constexpr AttentionDevice kHopper{.num_processors = 132, .shared_bytes_per_block = 232448};
constexpr AttentionDevice kSpark{.num_processors = 48, .shared_bytes_per_block = 101376};

AttentionSize generated_rows(int rows, int segments, int element_bytes = 2) {
  return {.path = AttentionPath::kGenerated,
          .num_rows = rows,
          .num_segments = segments,
          .num_kv_heads = 4,
          .group = 6,
          .head_dim = 256,
          .element_bytes = element_bytes,
          .max_context = 262144,
          .scratch_bytes = attention_scratch_bytes(24, 256, rows, 262144),
          .max_arrivals = 32768};
}

TEST(AttentionPlan, SpansCoverTheContextInOrder) {
  EXPECT_EQ(span_begin(0), 0);
  for (int span = 0; span < span_of(262143); ++span) {
    ASSERT_LT(span_begin(span), span_begin(span + 1));
    ASSERT_EQ(span_of(span_begin(span)), span);
    ASSERT_EQ(span_of(span_begin(span + 1) - 1), span);
    for (const int dim : {128, 256}) {
      for (const int element_bytes : {1, 2}) {
        ASSERT_EQ(span_begin(span) % step_keys(dim, element_bytes), 0) << "steps are whole";
      }
    }
  }
  EXPECT_EQ(num_bundles(0), 0);
  EXPECT_EQ(num_bundles(kShortSpan * kBundleSpans), 1);
  EXPECT_EQ(num_bundles(kShortSpan * kBundleSpans + 1), 2);
}

TEST(AttentionPlan, UnitsHoldTheRowsOfASegment) {
  for (const auto& [rows, segments, columns, per_unit] :
       {std::tuple{1, 1, 8, 1}, {8, 8, 8, 1}, {8, 4, 16, 2}, {16, 4, 32, 4}, {64, 1, 32, 5}}) {
    for (const int element_bytes : {2, 1}) {
      const AttentionSize size = generated_rows(rows, segments, element_bytes);
      for (const AttentionDevice& device : {kHopper, kSpark}) {
        const GeneratedPlan plan = plan_generated(size, device);
        EXPECT_EQ(plan.columns, columns);
        EXPECT_EQ(plan.rows_per_unit, per_unit);
        EXPECT_LE(plan.used_columns(), plan.columns);
        EXPECT_LE(static_cast<std::size_t>(plan.shared.bytes), device.shared_bytes_per_block);
        EXPECT_GE(plan.slots, kMinSlots);
        EXPECT_LE(plan.slots, kMaxSlots);
        EXPECT_EQ(plan.grid % device.num_processors, 0);
        EXPECT_GE(plan.grid, device.num_processors);
      }
      // As many blocks stay as registers have been set aside for, and enough bytes are under way.
      const GeneratedPlan plan = plan_generated(size, kHopper);
      const int blocks = plan.grid / kHopper.num_processors;
      EXPECT_EQ(blocks, generated_blocks(columns));
      EXPECT_GE(blocks * kStrands * (plan.slots - 1) * kSlotBytes, 128 << 10);
    }
  }
  AttentionSize many_heads = generated_rows(3, 1);
  many_heads.group = 40;
  const GeneratedPlan plan = plan_generated(many_heads, kHopper);
  EXPECT_EQ(plan.head_units, 2);
  EXPECT_EQ(plan.rows_per_unit, 1);
}

TEST(AttentionPlan, TypesAndClassesChooseTheKernel) {
  using ops::KvFormat;
  using ops::RowClass;
  for (const KvFormat narrow : {KvFormat::kBf16, KvFormat::kFp8Dynamic, KvFormat::kFp8Static}) {
    EXPECT_EQ(attention_path(DType::kBF16, narrow, RowClass::kPrompt), AttentionPath::kPrompt);
    EXPECT_EQ(attention_path(DType::kBF16, narrow, RowClass::kGenerated),
              AttentionPath::kGenerated);
    EXPECT_EQ(attention_path(DType::kF32, narrow, RowClass::kPrompt), AttentionPath::kPlain);
  }
  EXPECT_EQ(attention_path(DType::kBF16, KvFormat::kF32, RowClass::kGenerated),
            AttentionPath::kPlain);
}

// The widest unit of the largest heads, whose queries take most.
TEST(AttentionPlan, FullUnitsFitEveryDevice) {
  for (const int group : {1, 8, 16, 32, 64}) {
    for (const int rows : {1, 2, 32}) {
      for (const int element_bytes : {2, 1}) {
        AttentionSize size = generated_rows(rows, 1, element_bytes);
        size.group = group;
        for (const AttentionDevice& device : {kHopper, kSpark}) {
          const GeneratedPlan plan = plan_generated(size, device);
          EXPECT_LE(plan.used_columns(), plan.columns);
          EXPECT_GE(plan.slots, kMinSlots);
          EXPECT_EQ(plan.shared.units % 16, 0);
          EXPECT_LT(static_cast<std::size_t>(plan.shared.bytes), device.shared_bytes_per_block);
        }
      }
    }
  }
}

TEST(AttentionPlan, WhatIsSharedFitsScratchMemoryAndCounters) {
  AttentionSize size = generated_rows(16, 4);
  const GeneratedPlan plan = plan_generated(size, kHopper);
  const auto unit_floats =
      static_cast<std::size_t>(paired_columns(plan.used_columns()) * part_floats(256));
  EXPECT_LE(static_cast<std::size_t>(plan.bundles) * kBundleParts * unit_floats * sizeof(float),
            size.scratch_bytes);
  EXPECT_LE(2 * plan.bundles, size.max_arrivals);
  // Four sequences of 128K, which is 34 GB of keys and values in 16 layers.
  EXPECT_GE(plan.bundles, 4 * 4 * num_bundles(131072));
  // One row of an odd number of heads, at the end of its table.
  AttentionSize odd = generated_rows(1, 1);
  for (const int group : {1, 7}) {
    odd.group = group;
    odd.scratch_bytes = attention_scratch_bytes(4 * group, 256, 1, odd.max_context);
    EXPECT_GE(plan_generated(odd, kHopper).bundles, 4 * num_bundles(odd.max_context));
  }
  size.scratch_bytes = 0;
  EXPECT_EQ(plan_generated(size, kHopper).bundles, 0);
  EXPECT_LE(attention_scratch_bytes(24, 256, 8192, 262144), std::size_t{256} << 20);
}

TEST(AttentionPlan, PromptTilesCoverEverySegment) {
  for (const int group : {1, 6, 7, 40}) {
    for (const auto& segments : {std::vector{1}, {2048}, {11, 1, 1, 64, 300}, {10, 11, 21, 22}}) {
      int rows = 0, tiles = 0;
      for (const int n : segments) {
        rows += n;
        tiles += (n * group + kTileQueries - 1) / kTileQueries;
      }
      for (const int element_bytes : {2, 1}) {
        const PromptPlan plan = plan_prompt({.path = AttentionPath::kPrompt,
                                             .num_rows = rows,
                                             .num_segments = static_cast<int>(segments.size()),
                                             .num_kv_heads = 2,
                                             .group = group,
                                             .head_dim = 256,
                                             .element_bytes = element_bytes});
        EXPECT_GE(plan.tiles, tiles);
        EXPECT_LT(plan.tiles, tiles + static_cast<int>(segments.size()));
        EXPECT_EQ(plan.grid, 2 * plan.tiles);
        EXPECT_LE(plan.shared_bytes, kSpark.shared_bytes_per_block);
      }
    }
  }
}

TEST(AttentionPlan, PlainSplitsNeedScratch) {
  AttentionSize size{.num_rows = 1,
                     .num_segments = 1,
                     .num_kv_heads = 4,
                     .group = 6,
                     .head_dim = 256,
                     .max_context = 32768};
  EXPECT_EQ(plan_plain(size, kHopper).splits, 1);
  size.scratch_bytes = attention_scratch_bytes(24, 256, 1, 32768);
  EXPECT_GT(plan_plain(size, kHopper).splits, 1);
  EXPECT_LE(plan_plain(size, kHopper).splits, num_plain_spans(size.max_context));
}

}  // namespace
}  // namespace tandem::cuda
