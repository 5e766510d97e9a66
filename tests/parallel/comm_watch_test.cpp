// A failure that no call returns is reported once; a limit fires only when it has passed.
#include "parallel/comm_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace tandem {
namespace {

bool becomes_true(const std::atomic<bool>& flag) {
  for (int i = 0; i < 5000 && !flag; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return flag;
}

TEST(CommWatch, ReportsTheFirstFailureOnce) {
  std::atomic<int> probes{0};
  std::atomic<int> reports{0};
  std::atomic<bool> reported{false};
  std::string what;
  {
    const CommWatch watch(
        [&]() -> std::optional<ErrorText> {
          if (++probes < 3) return std::nullopt;
          return ErrorText{.what = "remote process exited"};
        },
        [&](const ErrorText& text, ExitCode code) {
          EXPECT_EQ(code, ExitCode::kRankFailure);
          what = text.what;
          ++reports;
          reported = true;
        },
        0.001);
    // The main thread may be blocked for ever: nobody asks.
    EXPECT_TRUE(becomes_true(reported));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(what, "remote process exited");
  EXPECT_EQ(reports, 1);
  EXPECT_EQ(probes, 3);
}

TEST(CommWatch, EndsAtOnceWhenNothingHappened) {
  const auto start = std::chrono::steady_clock::now();
  {
    const CommWatch watch([] { return std::nullopt; }, end_process, 60);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(TimeLimit, FiresOnlyWhenItHasPassed) {
  std::atomic<bool> fired{false};
  {
    const TimeLimit limit(60, [&] { fired = true; });
  }
  EXPECT_FALSE(fired);
  const TimeLimit limit(0.001, [&] { fired = true; });
  EXPECT_TRUE(becomes_true(fired));
}

}  // namespace
}  // namespace tandem
