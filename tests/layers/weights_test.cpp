// How layers cut their weights: leaves of reduction trees, vocabulary shards, what is asked of the
// loader, and the scratch memory of a pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "kernels/backend.h"
#include "layers/full_attention.h"
#include "layers/mlp.h"
#include "layers/vocab.h"
#include "tests/layers/layer_fixture.h"

namespace tandem::testing {
namespace {

using ::testing::ElementsAre;

const StoredAs kStoredBf16(WeightFormat::kBf16);

TEST(TreeLeaves, LargestPowerOfTwoUpToEightThatDivides) {
  EXPECT_EQ(num_tree_leaves(1), 1);
  EXPECT_EQ(num_tree_leaves(6), 2);
  EXPECT_EQ(num_tree_leaves(12), 4);
  EXPECT_EQ(num_tree_leaves(24), 8);     // query heads of the 27B
  EXPECT_EQ(num_tree_leaves(48), 8);     // its value heads
  EXPECT_EQ(num_tree_leaves(17408), 8);  // its MLP
  for (int blocks = 1; blocks <= 200; ++blocks) {
    const int leaves = num_tree_leaves(blocks);
    EXPECT_EQ(blocks % leaves, 0) << blocks;
    EXPECT_TRUE(leaves == 8 || blocks % (2 * leaves) != 0) << blocks;
  }
}

TEST(VocabShards, CoverTheVocabularyOnceInOrder) {
  for (const std::int64_t vocab : {1, 3, 5, 16, 4096, 4099, 248320}) {
    for (const int size : {1, 2, 3, 4, 8}) {
      std::int64_t next = 0;
      for (int rank = 0; rank < size; ++rank) {
        const VocabShard shard = make_vocab_shard(vocab, {rank, size});
        EXPECT_EQ(shard.vocab_size, vocab);
        EXPECT_EQ(shard.padded_rows, (vocab + size - 1) / size);
        EXPECT_EQ(shard.begin, next) << vocab << " ids, rank " << rank << " of " << size;
        // Gathered parts are contiguous only if every shard before the last ids is full.
        EXPECT_TRUE(shard.rows == shard.padded_rows || shard.begin + shard.rows == vocab);
        next += shard.rows;
      }
      EXPECT_EQ(next, vocab) << size << " ranks";
    }
  }
}

TEST(VocabShards, EmptyOnTheLastRanksOfATinyVocabulary) {
  EXPECT_EQ(make_vocab_shard(5, {2, 4}).rows, 1);
  EXPECT_EQ(make_vocab_shard(5, {3, 4}).rows, 0);
  EXPECT_EQ(make_vocab_shard(5, {3, 4}).padded_rows, 2);
}

TEST(ScratchMemory, MeasuringAndHandingOutAgree) {
  const auto layout = [](Scratch& scratch) {
    std::vector<const void*> out = {scratch.take<float>(3)};
    {
      const Scratch::Mark mark(scratch);
      out.push_back(scratch.take(DType::kBF16, 1000));
      out.push_back(scratch.take_bytes(0));
    }
    out.push_back(scratch.take<std::int32_t>(65));
    return out;
  };
  Scratch measure;
  EXPECT_TRUE(measure.measuring());
  for (const void* p : layout(measure)) EXPECT_EQ(p, nullptr);
  EXPECT_EQ(measure.peak(), 256u + 2048u);  // the scope's arrays were its largest extent

  alignas(256) static std::byte memory[256 + 2048];
  Scratch scratch(memory, sizeof memory);
  EXPECT_FALSE(scratch.measuring());
  EXPECT_THAT(layout(scratch),
              ElementsAre(memory, memory + 256, memory + 256 + 2048, memory + 256));
  EXPECT_EQ(scratch.peak(), measure.peak());
}

TEST(ScratchMemory, OverrunIsRefused) {
  alignas(256) static std::byte memory[512];
  Scratch scratch(memory, sizeof memory);
  EXPECT_NE(scratch.take_bytes(257), nullptr);
  EXPECT_THROW(scratch.take_bytes(1), Error);
}

TEST(WeightBinding, MatrixAsksForItsSliceInItsStoredType) {
  HeapAllocator memory;
  WeightBinder binder(memory, {1, 2}, kStoredBf16, BackendKind::kCpu);
  const auto w = binder.matrix("w", 12, 10, {{3, 6}, {8, 10}}, ColRange{4, 8});
  EXPECT_EQ(w.format, ops::WeightFormat::kBf16);
  EXPECT_EQ(w.out_features, 5);
  EXPECT_EQ(w.in_features, 4);
  ASSERT_EQ(binder.requests().size(), 1u);
  const auto& r = binder.requests()[0];
  EXPECT_EQ(r.name, "w");
  EXPECT_THAT(r.shape, ElementsAre(12, 10));
  EXPECT_THAT(r.rows, ElementsAre(RowRange{3, 6}, RowRange{8, 10}));
  EXPECT_EQ(r.cols, (ColRange{4, 8}));
  EXPECT_EQ(r.as, DType::kBF16);
  EXPECT_EQ(r.dst, w.data);
  EXPECT_EQ(r.dst_row_stride, 4);
  EXPECT_EQ(memory.bytes(parts::kWeights), 5u * 4 * 2);
}

TEST(WeightBinding, WiderTypesAreKeptWide) {
  HeapAllocator memory;
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kF16}) {
    const StoredAs stored(format);
    WeightBinder binder(memory, {}, stored, BackendKind::kCpu);
    EXPECT_EQ(binder.matrix("w", 2, 3, {}, std::nullopt).format, ops::WeightFormat::kF32);
    EXPECT_EQ(binder.requests()[0].as, DType::kF32);
  }
  // Not there: the loader will say so.
  const StoredAs nothing(std::nullopt);
  WeightBinder binder(memory, {}, nothing, BackendKind::kCpu);
  EXPECT_EQ(binder.matrix("w", 2, 3, {}, std::nullopt).format, ops::WeightFormat::kBf16);
}

TEST(WeightBinding, QuantizedMatrixKeepsCodesAndScales) {
  HeapAllocator memory;
  const StoredAs block(StoredFormat{WeightFormat::kFp8Block, DType::kBF16, 128, 128});
  WeightBinder binder(memory, {}, block, BackendKind::kCpu);
  const auto w = binder.matrix("w", 512, 384, {{128, 256}, {320, 512}}, ColRange{128, 384});
  EXPECT_EQ(w.format, ops::WeightFormat::kFp8Block);
  EXPECT_EQ(w.out_features, 320);
  EXPECT_EQ(w.in_features, 256);
  EXPECT_EQ(w.block_rows, 64);  // the second range begins in the middle of a block
  EXPECT_EQ(w.block_cols, 128);
  EXPECT_EQ(w.scale_dtype, DType::kBF16);
  EXPECT_EQ(memory.bytes(parts::kWeights), 320u * 256 + 5u * 2 * 2);
  const auto& r = binder.requests().at(0);
  ASSERT_TRUE(r.quantized.has_value());
  EXPECT_EQ(r.dst, w.data);
  EXPECT_EQ(r.quantized->scales, w.scales);
  EXPECT_EQ(r.quantized->block_rows, 128);  // the checkpoint's

  const StoredAs nibbles(StoredFormat{WeightFormat::kNvfp4, DType::kF8E4M3, 1, 16});
  WeightBinder packed(memory, {}, nibbles, BackendKind::kCpu);
  const auto head = packed.matrix("w", 10, 64, {{0, 4}}, std::nullopt, 5);
  EXPECT_EQ(head.format, ops::WeightFormat::kNvfp4);
  EXPECT_EQ(head.scale_2, StoredAs::kFactor);
  EXPECT_EQ(head.block_cols, 16);
  EXPECT_EQ(memory.bytes(parts::kWeights), 320u * 256 + 5u * 2 * 2 + 5u * 32 + 4u * 4);
  EXPECT_EQ(packed.widened(), "");
}

TEST(WeightBinding, TablesAreWidened) {
  HeapAllocator memory;
  const StoredAs stored(StoredFormat{WeightFormat::kFp8Tensor, DType::kF32, 11, 8});
  WeightBinder binder(memory, {}, stored, BackendKind::kCpu);
  EXPECT_EQ(binder.table("embed", 11, 8, {}).format, ops::WeightFormat::kF32);
  EXPECT_FALSE(binder.requests()[0].quantized.has_value());
  EXPECT_EQ(binder.widened(), "1 of format fp8 tensor");
}

TEST(TreeLeaves, CutNoScaleBlock) {
  EXPECT_EQ(tree_units(17408, 17408, 128), 136);  // down_proj of the 27B
  EXPECT_EQ(tree_units(17408, 17408, 16), 1088);
  EXPECT_EQ(tree_units(6144, 24, 128), 24);  // o_proj: a head holds two blocks
  EXPECT_EQ(tree_units(6144, 48, 256), 24);  // two heads share a block
  EXPECT_EQ(tree_units(384, 384, 1), 384);
  EXPECT_EQ(tree_units(104, 104, 128), 1);  // less than one block
}

TEST(WeightBinding, PaddingAndPartsAreCounted) {
  HeapAllocator memory;
  WeightBinder binder(memory, {}, kStoredBf16, BackendKind::kCpu);
  const auto w = binder.matrix("w", 7, 4, {{5, 7}}, std::nullopt, 5);
  EXPECT_EQ(w.out_features, 2);  // without the padding
  EXPECT_EQ(memory.bytes(parts::kWeights), 5u * 4 * 2);
  binder.set_part(parts::kDrafterWeights);
  EXPECT_NE(binder.vector_f32("v", {6, 1, 4}, {{2, 5}}), nullptr);
  EXPECT_EQ(memory.bytes(parts::kDrafterWeights), 3u * 4 * 4);
  EXPECT_EQ(memory.bytes(parts::kWeights), 5u * 4 * 2);
  const auto& r = binder.requests().back();
  EXPECT_THAT(r.shape, ElementsAre(6, 1, 4));
  EXPECT_EQ(r.as, DType::kF32);
  EXPECT_EQ(r.dst_row_stride, 4);
}

TEST(WeightBinding, PlanningTakesTheSameBytesAndNoMemory) {
  CountingAllocator planned;
  HeapAllocator memory;
  const auto bind = [](PartAllocator& allocator) {
    WeightBinder binder(allocator, {1, 2}, kStoredBf16, BackendKind::kCpu);
    const GatedMlp mlp(binder, "mlp.", 24, 64);
    return binder.take_requests();
  };
  const auto plan = bind(planned);
  const auto real = bind(memory);
  ASSERT_EQ(plan.size(), 3u);
  for (std::size_t i = 0; i < plan.size(); ++i) {
    EXPECT_EQ(plan[i].name, real[i].name);
    EXPECT_EQ(plan[i].dst, nullptr);
    EXPECT_NE(real[i].dst, nullptr);
  }
  EXPECT_EQ(memory.bytes(parts::kWeights), 3u * 24 * 32 * 2);
  EXPECT_EQ(planned.bytes(std::string(parts::kWeights)), 3 * align_up(24 * 32 * 2));
}

TEST(AttentionPages, FewerKvHeadsThanRanksAreKeptTwice) {
  const AttentionConfig config{.num_heads = 8, .num_kv_heads = 2, .head_dim = 64};
  const EngineShape shape{.page_tokens = 16};
  const auto bytes = [&](int size) {
    return FullAttention::page_bytes(config, shape, {size - 1, size});
  };
  EXPECT_EQ(bytes(1), 2 * 2 * 64 * 16 * 2);
  EXPECT_EQ(bytes(2), bytes(1) / 2);
  EXPECT_EQ(bytes(4), bytes(2));
}

// Qwen3.8-27B's layer: half of BF16's bytes, and four for a scale of each head, token and plane.
TEST(AttentionPages, Fp8TakesAByteAValueAndFourAScale) {
  AttentionConfig config{.num_heads = 24, .num_kv_heads = 4, .head_dim = 256};
  const EngineShape shape{.page_tokens = 16};
  const auto token_bytes = [&](ops::KvFormat format) {
    config.kv_format = format;
    return FullAttention::page_bytes(config, shape, {0, 1}) / shape.page_tokens;
  };
  EXPECT_EQ(token_bytes(ops::KvFormat::kBf16), 4096);
  EXPECT_EQ(token_bytes(ops::KvFormat::kFp8Static), 2048);
  EXPECT_EQ(token_bytes(ops::KvFormat::kFp8Dynamic), 2048 + 2 * 4 * 4);
}

// What is taken is what page_bytes() says; given scales are weights.
TEST(AttentionPages, TakeWhatIsPlanned) {
  const auto backend = make_backend(BackendKind::kCpu, {.num_threads = 1});
  AttentionConfig config{.hidden = 32,
                         .num_heads = 4,
                         .num_kv_heads = 4,
                         .head_dim = 16,
                         .rotary_dim = 4,
                         .rope_theta = 1e4,
                         .kv_scales = {.k = {1, 2, 3, 4}, .v = {5, 6, 7, 8}}};
  const EngineShape shape{.num_pages = 3, .page_tokens = 8, .pages_per_sequence = 3};
  std::size_t weights[2] = {};
  for (const auto format : {ops::KvFormat::kFp8Dynamic, ops::KvFormat::kFp8Static}) {
    HeapAllocator memory;
    WeightBinder binder(memory, {1, 2}, kStoredBf16, BackendKind::kCpu);
    config.kv_format = format;
    const FullAttention layer(binder, memory, backend.get(), "a.", config, shape);
    EXPECT_EQ(static_cast<std::int64_t>(memory.bytes(parts::kKvPages)),
              3 * FullAttention::page_bytes(config, shape, {1, 2}));
    weights[format == ops::KvFormat::kFp8Static ? 1 : 0] = memory.bytes(parts::kWeights);
  }
  EXPECT_EQ(weights[1] - weights[0], 2 * 2 * sizeof(float));  // two heads of this rank, K and V
}

}  // namespace
}  // namespace tandem::testing
