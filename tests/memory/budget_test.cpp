#include "memory/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

MemorySample sample_with(std::int64_t available) {
  MemorySample sample;
  sample.host.available = Reading::of(available);
  sample.cgroup.limit = Reading::missing("no limit");
  return sample;
}

RankPlan plan_with(std::int64_t weights, std::int64_t kv, std::int64_t transient) {
  RankPlan plan;
  plan.rank = 1;
  plan.parts = {{kProcessPart, 100 * kGiB}, {"weights NVFP4", weights}, {"kv pages", kv}};
  plan.loaded_parts = {"weights NVFP4"};
  plan.load_transient_bytes = transient;
  return plan;
}

TEST(HostBudget, SharesWhatTheReserveLeavesAmongTheRanksOfTheHost) {
  const auto budget = host_budget(sample_with(120 * kGiB), "spark1", 12 * kGiB, 2);
  EXPECT_EQ(budget.per_rank_bytes(), 54 * kGiB);
  EXPECT_EQ(budget.limited_by, "MemAvailable");
}

TEST(HostBudget, ACgroupLimitBelowCounts) {
  auto sample = sample_with(120 * kGiB);
  sample.cgroup.limit = Reading::of(32 * kGiB);
  sample.cgroup.usage = Reading::of(4 * kGiB);
  const auto budget = host_budget(sample, "spark1", 12 * kGiB, 1);
  EXPECT_EQ(budget.per_rank_bytes(), 16 * kGiB);
  EXPECT_EQ(budget.limited_by, "cgroup limit");
  sample.cgroup.limit = Reading::of(500 * kGiB);
  EXPECT_EQ(host_budget(sample, "spark1", 12 * kGiB, 1).per_rank_bytes(), 108 * kGiB);
}

TEST(HostBudget, NeverNegativeAndNeverGuessed) {
  EXPECT_EQ(host_budget(sample_with(kGiB), "a", 12 * kGiB, 1).per_rank_bytes(), 0);
  MemorySample unknown;
  unknown.host.available = Reading::missing("no /proc");
  EXPECT_THROW(host_budget(unknown, "a", 0, 1), Error);
}

TEST(RankPlan, LoadPeakAndSteadyStateAreDifferentMoments) {
  const auto plan = plan_with(50 * kGiB, 10 * kGiB, 4 * kGiB);
  EXPECT_EQ(plan.steady_bytes(), 60 * kGiB) << "the process is held already";
  EXPECT_EQ(plan.load_peak_bytes(), 54 * kGiB) << "no KV pages while loading";
  EXPECT_EQ(plan.needed_bytes(), 60 * kGiB);
  EXPECT_EQ(plan_with(50 * kGiB, kGiB, 4 * kGiB).needed_bytes(), 54 * kGiB);
}

TEST(Fit, ExactlyFittingIsFine) {
  const auto budget = host_budget(sample_with(72 * kGiB), "spark1", 12 * kGiB, 1);
  EXPECT_NO_THROW(require_fit(plan_with(50 * kGiB, 10 * kGiB, 0), budget));
  EXPECT_EQ(bytes_left(plan_with(50 * kGiB, 10 * kGiB, 0), budget), 0);
  EXPECT_EQ(bytes_left(plan_with(50 * kGiB, 0, 0), budget), 10 * kGiB);
}

TEST(Fit, RefusalShowsTableShortageAndKnobs) {
  const auto budget = host_budget(sample_with(64 * kGiB), "spark1", 12 * kGiB, 1);
  auto plan = plan_with(50 * kGiB, 10 * kGiB, 0);
  plan.knobs = {{"scheduler.max_context", "262144", "131072", 5 * kGiB},
                {"scheduler.max_sequences", "8", "4", 8 * kGiB}};
  try {
    require_fit(plan, budget);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kDoesNotFit);
    const std::string text = e.what();
    EXPECT_THAT(text, HasSubstr("rank 1 on spark1"));
    EXPECT_THAT(text, HasSubstr("8.00 GiB missing"));
    EXPECT_THAT(text, HasSubstr("weights NVFP4"));
    EXPECT_THAT(text, HasSubstr("scheduler.max_context: 262144 -> 131072 (saves 5.00 GiB)"));
    EXPECT_THAT(text, HasSubstr("4 (saves 8.00 GiB, enough alone)"));
  }
}

TEST(Render, ShowsEveryPartAndTheBudgetsOrigin) {
  auto sample = sample_with(120 * kGiB);
  sample.cgroup.limit = Reading::of(80 * kGiB);
  sample.cgroup.usage = Reading::of(0);
  const auto text = render_plan(plan_with(45 * kGiB, 15 * kGiB, 2 * kGiB),
                                host_budget(sample, "spark1", 12 * kGiB, 1));
  EXPECT_THAT(text, HasSubstr("75.0 %"));
  EXPECT_THAT(text, HasSubstr("held already"));
  EXPECT_THAT(text, HasSubstr("cgroup limit 80.00 GiB - reserve 12.00 GiB"));
  EXPECT_THAT(text, HasSubstr("of it 2.00 GiB for reading"));
  EXPECT_THAT(text, AllOf(HasSubstr("left"), Not(HasSubstr("missing"))));
}

}  // namespace
}  // namespace tandem
