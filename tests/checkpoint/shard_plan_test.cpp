// Slices: every row belongs to exactly one rank (or to a stated number of them), on block borders.
#include "checkpoint/shard_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>

#include "checkpoint/checkpoint.h"
#include "tests/checkpoint/builder.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ShardPlan, EvenSplits) {
  EXPECT_EQ(split_even(12, 1, 3), (RowRange{4, 8}));
  EXPECT_EQ(split_even_cols(12, 2, 3), (ColRange{8, 12}));
  EXPECT_THROW(split_even(10, 0, 3), Error);
  EXPECT_THROW(split_even(12, 3, 3), Error);
}

TEST(ShardPlan, PaddedSplitsCoverEveryRowOnce) {
  for (const std::int64_t n : {1, 7, 8, 100, 248077}) {
    for (const int size : {1, 2, 3, 8}) {
      for (const std::int64_t multiple : {1, 64}) {
        std::int64_t next = 0;
        for (int rank = 0; rank < size; ++rank) {
          const auto range = split_padded(n, rank, size, multiple);
          EXPECT_EQ(range.begin, next);
          EXPECT_LE(range.count(), padded_shard_rows(n, size, multiple));
          next = range.end;
        }
        EXPECT_EQ(next, n);
      }
    }
  }
  EXPECT_EQ(padded_shard_rows(248077, 2, 64), 124096);
}

TEST(ShardPlan, HeadsAreSharedWhenThereAreFewerThanRanks) {
  EXPECT_EQ(split_heads(4, 256, 1, 2), (RowRange{512, 1024}));
  EXPECT_EQ(split_heads(2, 256, 0, 4), (RowRange{0, 256}));
  EXPECT_EQ(split_heads(2, 256, 1, 4), (RowRange{0, 256}));
  EXPECT_EQ(split_heads(2, 256, 3, 4), (RowRange{256, 512}));
  EXPECT_THROW(split_heads(2, 256, 0, 3), Error);
}

TEST(ShardPlan, SegmentsAreSplitByThemselves) {
  const std::array<std::int64_t, 3> segments{2048, 2048, 6144};
  EXPECT_THAT(split_segments(segments, 1, 2),
              ElementsAre(RowRange{1024, 2048}, RowRange{3072, 4096}, RowRange{7168, 10240}));
}

// The table of the 27B model over two ranks.
TEST(ShardPlan, SplitsThe27bAsSpecified) {
  ModelConfig c;
  c.num_attention_heads = 24;
  c.num_key_value_heads = 4;
  c.head_dim = 256;
  c.linear_num_key_heads = 16;
  c.linear_num_value_heads = 48;
  c.linear_key_head_dim = 128;
  c.linear_value_head_dim = 128;
  c.intermediate_size = 17408;
  EXPECT_THAT(qwen3_8_split_faults(c, 2), IsEmpty());
  struct Row {
    const char* name;
    TensorShape shape;
    std::vector<RowRange> rows;  // of rank 1
    std::optional<ColRange> cols;
  };
  const std::vector<Row> table{
      {"embed_tokens.weight", {248320, 5120}, {{124160, 248320}}, {}},
      {"lm_head.weight", {248320, 5120}, {{124160, 248320}}, {}},
      {"layers.3.self_attn.q_proj.weight", {12288, 5120}, {{6144, 12288}}, {}},
      {"layers.3.self_attn.k_proj.weight", {1024, 5120}, {{512, 1024}}, {}},
      {"layers.3.self_attn.o_proj.weight", {5120, 6144}, {}, ColRange{3072, 6144}},
      {"layers.3.self_attn.q_norm.weight", {256}, {}, {}},
      {"layers.0.linear_attn.in_proj_qkv.weight",
       {10240, 5120},
       {{1024, 2048}, {3072, 4096}, {7168, 10240}},
       {}},
      {"layers.0.linear_attn.conv1d.weight",
       {10240, 1, 4},
       {{1024, 2048}, {3072, 4096}, {7168, 10240}},
       {}},
      {"layers.0.linear_attn.in_proj_z.weight", {6144, 5120}, {{3072, 6144}}, {}},
      {"layers.0.linear_attn.in_proj_a.weight", {48, 5120}, {{24, 48}}, {}},
      {"layers.0.linear_attn.A_log", {48}, {{24, 48}}, {}},
      {"layers.0.linear_attn.norm.weight", {128}, {}, {}},
      {"layers.0.linear_attn.out_proj.weight", {5120, 6144}, {}, ColRange{3072, 6144}},
      {"layers.0.mlp.gate_proj.weight", {17408, 5120}, {{8704, 17408}}, {}},
      {"layers.0.mlp.down_proj.weight", {5120, 17408}, {}, ColRange{8704, 17408}},
      {"mtp.fc.weight", {5120, 10240}, {}, {}},
      {"mtp.layers.0.self_attn.v_proj.weight", {1024, 5120}, {{512, 1024}}, {}}};
  for (const auto& row : table) {
    const auto split = qwen3_8_split(c, row.name, row.shape, 1, 2);
    EXPECT_EQ(split.rows, row.rows) << row.name;
    EXPECT_EQ(split.cols, row.cols) << row.name;
  }
}

TEST(ShardPlan, NamesWhatDoesNotDivide) {
  const auto c = read_model_config(testing::test_data("tiny-qwen3.8"));
  EXPECT_THAT(qwen3_8_split_faults(c, 2), IsEmpty());
  EXPECT_THAT(qwen3_8_split_faults(c, 4), IsEmpty());  // KV heads are shared
  const auto faults = qwen3_8_split_faults(c, 3);
  EXPECT_THAT(faults, ::testing::Contains(HasSubstr("num_attention_heads 4 does not divide by 3")));
  EXPECT_THAT(faults, ::testing::Contains(HasSubstr("num_key_value_heads 2 and 3 ranks")));
}

// Every kept element finds its block's scale where a kernel looks for it.
void expect_right_scales(std::int64_t block_rows, std::int64_t block_cols, std::int64_t all_cols,
                         const std::vector<RowRange>& rows, ColRange cols) {
  const ScaleSlice slice = slice_scales(block_rows, block_cols, all_cols, rows, cols);
  std::int64_t row = 0;
  for (const auto& range : rows) {
    for (std::int64_t n = range.begin; n < range.end; ++n, ++row) {
      ASSERT_EQ(slice.rows.at(static_cast<std::size_t>(row / slice.block_rows)), n / block_rows)
          << "row " << n << " in blocks of " << block_rows;
    }
  }
  EXPECT_EQ(static_cast<std::int64_t>(slice.rows.size()),
            (row + slice.block_rows - 1) / slice.block_rows);
  for (std::int64_t k = 0; k < cols.count(); ++k) {
    ASSERT_EQ(slice.cols.at(static_cast<std::size_t>(k / slice.block_cols)),
              (cols.begin + k) / block_cols)
        << "column " << cols.begin + k << " in blocks of " << block_cols;
  }
  EXPECT_EQ(static_cast<std::int64_t>(slice.cols.size()),
            (cols.count() + slice.block_cols - 1) / slice.block_cols);
}

TEST(ScaleSlices, KeptElementsFindTheirScales) {
  const std::vector<std::vector<RowRange>> row_sets{
      {{0, 640}},           {{320, 640}},          {{128, 256}, {384, 512}},
      {{64, 128}, {0, 64}}, {{0, 52}, {104, 130}}, {{5, 5}},
      {{7, 9}, {30, 31}},   {{600, 640}, {1, 2}}};
  for (const std::int64_t block : {1, 16, 32, 128}) {
    for (const auto& rows : row_sets) {
      for (const ColRange cols : {ColRange{0, 400}, {0, 200}, {200, 400}, {384, 400}, {48, 48}}) {
        expect_right_scales(block, block, 400, rows, cols);
        expect_right_scales(1, block, 400, rows, cols);
        expect_right_scales(block, 400, 400, rows, cols);  // one scale a row
      }
    }
  }
}

TEST(ScaleSlices, WholeBlocksKeepTheirSize) {
  // in_proj_qkv of the 27B on the second of two ranks: three segments.
  const std::vector<RowRange> rows{{1024, 2048}, {3072, 4096}, {7168, 10240}};
  const auto slice = slice_scales(128, 128, 5120, rows, {0, 5120});
  EXPECT_EQ(slice.block_rows, 128);
  EXPECT_EQ(slice.block_cols, 128);
  EXPECT_EQ(slice.rows.size(), 40u);
  EXPECT_EQ(slice.rows[8], 24);
  // An expert of 640 rows on two ranks: half a block is the largest that fits.
  const std::vector<RowRange> half{{320, 640}};
  EXPECT_EQ(slice_scales(128, 128, 2560, half, {0, 2560}).block_rows, 64);
  EXPECT_EQ(slice_scales(1, 16, 640, half, {320, 640}).block_cols, 16);
}

TEST(ShardPlan, ShardsHoldWholeBytes) {
  WeightLayout w;
  w.weight = "experts.0.gate_proj.weight";
  w.format = WeightFormat::kFp8Block;
  w.rows = w.matrix_rows = 640;
  w.cols = 2560;
  w.block_rows = w.block_cols = 128;
  // Half an expert is two blocks and a half: its scales are repeated.
  EXPECT_FALSE(packed_split_fault(w, SplitAxis::kRows, 2).has_value());
  const auto fault = packed_split_fault(w, SplitAxis::kRows, 3);
  ASSERT_TRUE(fault.has_value());
  EXPECT_THAT(*fault, HasSubstr("experts.0.gate_proj.weight"));
  EXPECT_THAT(*fault, HasSubstr("640 rows do not divide into 3 parts; use fewer ranks"));

  w.format = WeightFormat::kNvfp4;
  w.block_rows = 1;
  w.block_cols = 16;
  w.cols = 48;
  EXPECT_FALSE(packed_split_fault(w, SplitAxis::kColumns, 8).has_value());
  EXPECT_THAT(packed_split_fault(w, SplitAxis::kColumns, 16).value_or(""),
              HasSubstr("48 columns do not divide into 16 parts of whole bytes"));
  EXPECT_FALSE(packed_split_fault(w, SplitAxis::kRows, 16).has_value());
}

}  // namespace
}  // namespace tandem
