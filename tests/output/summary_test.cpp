#include "output/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::ElementsAre;

RequestRow row_of(std::int64_t tokens, bool warm = false) {
  RequestRow row;
  row.session = 1;
  row.completion_tokens = tokens;
  row.prompt_tokens = 10;
  row.warm = warm;
  row.last_token_s = 2.0;
  return row;
}

GroupRecord run_of(std::int64_t run_index, double wall_s, bool warmup = false) {
  GroupRecord group;
  group.session = 1;
  group.run_index = run_index;
  group.warmup = warmup;
  group.start_s = 1;
  group.end_s = 1 + wall_s;
  return group;
}

std::vector<SummaryRow> summarize_rows(const std::vector<RequestRow>& rows,
                                       const std::vector<GroupRecord>& groups) {
  const std::vector<std::int64_t> no_tokens(rows.size() + 1, 0);
  return summarize(rows, groups, {.offsets = no_tokens, .times = {}, .steps = {}});
}

TEST(Percentile, NearestRank) {
  std::vector<double> values{5, 1, 4, 2, 3};
  EXPECT_EQ(percentile(values, 0.50), 3);
  EXPECT_EQ(percentile(values, 0.95), 5);
  EXPECT_EQ(percentile(values, 0.20), 1);
  EXPECT_EQ(percentile(values, 0.21), 2);
  EXPECT_EQ(percentile(values, 0.01), 1);
  std::vector<double> none;
  EXPECT_EQ(percentile(none, 0.5), std::nullopt);
}

// A round that yields several tokens is not one token with a long gap and others with none (F37).
TEST(TokenGaps, TokensOfARoundShareTheGap) {
  std::vector<double> gaps;
  // The prompt's token, a round of four stamped one by one, a round of one.
  append_token_gaps(std::vector<double>{1, 1.97, 1.98, 1.99, 2, 3},
                    std::vector<std::int64_t>{0, 1, 1, 1, 1, 2}, gaps);
  EXPECT_THAT(gaps, ElementsAre(0.25, 0.25, 0.25, 0.25, 1.0));
  gaps.clear();
  append_token_gaps({}, {}, gaps);
  append_token_gaps(std::vector<double>{4, 4}, std::vector<std::int64_t>{7, 7}, gaps);
  EXPECT_TRUE(gaps.empty());
}

TEST(Summary, SpeedIsTokensOverWallTimeAndSpreadIsOverRuns) {
  auto second = row_of(30);
  second.run_index = 1;
  auto warmup = row_of(1000);
  warmup.warmup = true;
  const auto summary = summarize_rows({row_of(10), row_of(20), second, warmup},
                                      {run_of(0, 3), run_of(1, 2), run_of(0, 9, true)});
  ASSERT_EQ(summary.size(), 2u);  // all, cold
  const auto& all = summary[0];
  EXPECT_EQ(all.requests, 3);
  EXPECT_EQ(all.runs, 2);
  EXPECT_EQ(all.completion_tokens, 60);
  EXPECT_DOUBLE_EQ(all.tokens_per_s.value(), 60.0 / 5);
  EXPECT_DOUBLE_EQ(all.tokens_per_s_min.value(), 10);
  EXPECT_DOUBLE_EQ(all.tokens_per_s_max.value(), 15);
  EXPECT_LE(all.tokens_per_s.value(), all.tokens_per_s_max.value()) << "peak below average";
  EXPECT_FALSE(summary[1].tokens_per_s.has_value()) << "cold and warm share their wall time";
}

TEST(Summary, NothingMeasuredIsMissing) {
  auto failed = row_of(0);
  failed.finish_reason = FinishReason::kError;
  failed.last_token_s.reset();
  const auto summary = summarize_rows({failed}, {run_of(0, 2)});
  ASSERT_EQ(summary.size(), 2u);
  EXPECT_EQ(summary[0].failed, 1);
  EXPECT_FALSE(summary[0].tokens_per_s.has_value());
  EXPECT_FALSE(summary[0].ttft_s_p50.has_value());
  EXPECT_FALSE(summary[0].itl_s_p99.has_value());
  EXPECT_FALSE(summary[0].decode_tokens_per_s_mean.has_value());
  EXPECT_FALSE(summary[0].acceptance.has_value());
  EXPECT_FALSE(summary[0].tokens_per_round.has_value());
  EXPECT_TRUE(summarize_rows({}, {}).empty());
}

TEST(Summary, ColdAndWarmApart) {
  auto cold = row_of(4);
  cold.ttft_s = 2.0;
  auto warm = row_of(4, true);
  warm.ttft_s = 0.5;
  const auto summary = summarize_rows({cold, warm, warm}, {run_of(0, 1)});
  ASSERT_EQ(summary.size(), 3u);
  EXPECT_EQ(summary[1].cache, "cold");
  EXPECT_EQ(summary[1].ttft_s_p95, 2.0);
  EXPECT_EQ(summary[2].cache, "warm");
  EXPECT_EQ(summary[2].requests, 2);
  EXPECT_EQ(summary[2].ttft_s_p95, 0.5);
}

TEST(Summary, AcceptanceCountsEvents) {
  auto row = row_of(16);
  row.draft_rounds = 4;
  row.drafted_tokens = 12;
  row.accepted_tokens = 9;
  const auto summary = summarize_rows({row}, {});
  EXPECT_DOUBLE_EQ(summary[0].acceptance.value(), 0.75);
  EXPECT_DOUBLE_EQ(summary[0].tokens_per_round.value(), 1 + 9.0 / 4);
  EXPECT_FALSE(summary[0].tokens_per_s.has_value()) << "no wall time was recorded";
}

}  // namespace
}  // namespace tandem
