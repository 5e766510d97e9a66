#include "memory/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <thread>

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;

MemorySample sample_at(double time_s, std::int64_t available, std::int64_t free) {
  MemorySample sample;
  sample.time_s = time_s;
  sample.host.available = Reading::of(available);
  sample.host.free = Reading::of(free);
  sample.host.swap_total = Reading::of(16 * kGiB);
  sample.host.swap_free = Reading::of(16 * kGiB);
  return sample;
}
MemorySample sample_at(double time_s, std::int64_t available) {
  return sample_at(time_s, available, available);
}

const WatchdogLimits kLimits{.warn_bytes = 6 * kGiB,
                             .stop_bytes = 3 * kGiB,
                             .stop_free_bytes = 512 * kMiB,
                             .stop_horizon_s = 3.0};

class MemoryJudgeTest : public ::testing::Test {
 protected:
  MemoryVerdict judge(const MemorySample& sample) { return judge_.judge(sample, reason_); }
  MemoryJudge judge_{kLimits};
  std::string reason_;
};

TEST_F(MemoryJudgeTest, ThresholdsInOrder) {
  EXPECT_EQ(judge(sample_at(0, 20 * kGiB)), MemoryVerdict::kFine);
  EXPECT_EQ(reason_, "");
  EXPECT_EQ(judge(sample_at(100, 5 * kGiB)), MemoryVerdict::kWarn);
  EXPECT_THAT(reason_, HasSubstr("5.00 GiB available"));
  EXPECT_EQ(judge(sample_at(200, 2 * kGiB)), MemoryVerdict::kStop);
  EXPECT_THAT(reason_, HasSubstr("2.00 GiB available, limit 3.00 GiB"));
}

TEST_F(MemoryJudgeTest, AFastFallStopsBeforeTheThreshold) {
  // 29 -> 2.5 GiB in 9 s was seen on a real box: 3 GiB/s.
  MemoryVerdict verdict = MemoryVerdict::kFine;
  double left = 29;
  for (double t = 0; verdict != MemoryVerdict::kStop && left > 0; t += 0.25) {
    left = 29 - 3 * t;
    verdict = judge(sample_at(t, static_cast<std::int64_t>(left * static_cast<double>(kGiB))));
  }
  EXPECT_GT(left, 5.0) << "the stop must leave time to save";
  EXPECT_THAT(reason_, HasSubstr("falling by 3.00 GiB a second"));
}

TEST_F(MemoryJudgeTest, LoadingFastFarAboveTheThresholdsIsFine) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(judge(sample_at(0.25 * i, (100 - i) * kGiB)), MemoryVerdict::kFine);
  }
}

TEST_F(MemoryJudgeTest, LittleMemFreeIsNormalWhileTheCacheHoldsTheRest) {
  EXPECT_EQ(judge(sample_at(0, 50 * kGiB, 100 * kMiB)), MemoryVerdict::kFine);
  EXPECT_EQ(judge(sample_at(10, 5 * kGiB, 100 * kMiB)), MemoryVerdict::kStop);
  EXPECT_THAT(reason_, HasSubstr("100.00 MiB free"));
}

TEST_F(MemoryJudgeTest, ACgroupLimitIsRoomToo) {
  auto sample = sample_at(0, 50 * kGiB);
  sample.cgroup.limit = Reading::of(10 * kGiB);
  sample.cgroup.usage = Reading::of(9 * kGiB);
  EXPECT_EQ(judge(sample), MemoryVerdict::kStop);
}

TEST_F(MemoryJudgeTest, StallsAreJudgedByTheirShareOfTime) {
  const auto at = [](double t, std::int64_t full_us) {
    auto sample = sample_at(t, 50 * kGiB);
    sample.pressure.full_us = Reading::of(full_us);
    return sample;
  };
  EXPECT_EQ(judge(at(0, 9'000'000)), MemoryVerdict::kFine)
      << "stalls before the start do not count";
  EXPECT_EQ(judge(at(2, 9'050'000)), MemoryVerdict::kFine);
  EXPECT_EQ(judge(at(10, 9'100'000)), MemoryVerdict::kFine);
  EXPECT_EQ(judge(at(12, 9'600'000)), MemoryVerdict::kWarn);
  EXPECT_THAT(reason_, HasSubstr("25 % of the time"));
  EXPECT_EQ(judge(at(14, 11'500'000)), MemoryVerdict::kStop);
}

TEST_F(MemoryJudgeTest, SwapCountsFromTheStart) {
  auto sample = sample_at(0, 50 * kGiB);
  sample.host.swap_free = Reading::of(10 * kGiB);  // 6 GiB of others
  EXPECT_EQ(judge(sample), MemoryVerdict::kFine);
  sample.time_s = 60;
  sample.host.swap_free = Reading::of(9 * kGiB);
  EXPECT_EQ(judge(sample), MemoryVerdict::kWarn);
  EXPECT_THAT(reason_, HasSubstr("1.00 GiB swapped out"));
}

TEST_F(MemoryJudgeTest, MissingValuesRaiseNoAlarm) {
  MemorySample nothing;
  EXPECT_EQ(judge(nothing), MemoryVerdict::kFine);
}

TEST(WatchdogLimits, ScaleWithTheReserve) {
  const auto limits = WatchdogLimits::for_reserve(12 * kGiB);
  EXPECT_EQ(limits.warn_bytes, 6 * kGiB);
  EXPECT_EQ(limits.stop_bytes, 3 * kGiB);
  EXPECT_EQ(limits.stop_free_bytes, 512 * kMiB);
  EXPECT_LT(WatchdogLimits::for_reserve(kGiB).stop_free_bytes, 50 * kMiB);
}

// A memory whose size the test turns by hand.
class FakeMemory {
 public:
  MemorySample read() const {
    auto sample = sample_at(0, available);
    sample.time_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    sample.process.rss_bytes = Reading::of(rss);
    return sample;
  }
  std::atomic<std::int64_t> available{50 * kGiB};
  std::atomic<std::int64_t> rss{kGiB};
};

template <typename Condition>
bool within_seconds(double limit_s, Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  while (std::chrono::steady_clock::now() < end) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return condition();
}

TEST(MemoryWatchdog, WarnsOncePerCrossingAndStopsOnce) {
  FakeMemory memory;
  std::atomic<int> warnings{0};
  std::atomic<int> stops{0};
  std::atomic<int> samples{0};
  MemoryWatchdog watchdog(
      kLimits, [&] { return memory.read(); },
      {.on_warn = [&](const std::string&) { ++warnings; },
       .on_stop = [&](const std::string&) { ++stops; },
       .on_sample = [&](const MemorySample&) { ++samples; }},
      0.005);
  EXPECT_TRUE(within_seconds(5, [&] { return samples >= 1; }));
  memory.available = 5 * kGiB;
  EXPECT_TRUE(within_seconds(5, [&] { return warnings == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(warnings, 1);
  EXPECT_EQ(stops, 0);
  memory.available = 2 * kGiB;
  EXPECT_TRUE(within_seconds(5, [&] { return stops == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(stops, 1);
  EXPECT_LE(samples, 2) << "samples come once a second, not at every look";
}

TEST(MemoryWatchdog, KeepsTheLowestOfEachPhase) {
  FakeMemory memory;
  MemoryWatchdog watchdog(
      kLimits, [&] { return memory.read(); }, {}, 0.005);
  watchdog.enter_phase("load");
  memory.rss = 7 * kGiB;
  memory.available = 20 * kGiB;
  EXPECT_TRUE(within_seconds(5, [&] { return *watchdog.lows()[0].peak_rss_bytes == 7 * kGiB; }));
  memory.available = 40 * kGiB;
  memory.rss = 2 * kGiB;
  watchdog.enter_phase("steady");
  const auto lows = watchdog.lows();
  ASSERT_EQ(lows.size(), 2u);
  EXPECT_EQ(lows[0].phase, "load");
  EXPECT_EQ(*lows[0].available_bytes, 20 * kGiB);
  EXPECT_EQ(lows[1].phase, "steady");
  EXPECT_EQ(*lows[1].available_bytes, 40 * kGiB);
  EXPECT_EQ(*lows[1].peak_rss_bytes, 2 * kGiB);
}

TEST(MemoryWatchdog, SurvivesAReaderThatThrows) {
  std::atomic<int> calls{0};
  {
    MemoryWatchdog watchdog(
        kLimits,
        [&]() -> MemorySample {
          ++calls;
          throw std::runtime_error("no /proc today");
        },
        {}, 0.01);
    EXPECT_TRUE(within_seconds(5, [&] { return calls >= 3; }));
  }
  SUCCEED() << "and ends";
}

}  // namespace
}  // namespace tandem
