// Kills the writer at every step of every flush and looks at what is left.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "output/result_reader.h"
#include "output/result_writer.h"
#include "tests/output/sample_records.h"
#include "tests/support/test_data.h"

namespace tandem {
namespace {

using testing::sample_id;
using testing::sample_options;
using testing::sample_request;
using testing::TempDir;

constexpr int kRequests = 4;
constexpr int kKilled = 42;
constexpr int kAllDone = 0;
constexpr ReadOptions kTokensAndSteps{.tokens = true, .text = true, .steps = true, .samples = true};

// One flush a request; the number of requests whose flush came back is noted outside the file.
void write_all(const std::filesystem::path& file, const std::filesystem::path& flushed,
               std::function<void(std::string_view)> before_step) {
  auto options = sample_options(file, kRequests);
  options.before_step = std::move(before_step);
  ResultWriter writer(std::move(options));
  for (int i = 0; i < kRequests; ++i) {
    writer.submit(sample_request(i));
    StepRecord step;
    step.step = i;
    step.output_tokens = 8;
    writer.submit(step);
    if (!writer.flush_now(std::chrono::seconds(60))) ::_exit(1);
    std::ofstream(flushed) << i + 1;
  }
  writer.finish(ExitCode::kDone);
}

int number_in(const std::filesystem::path& file) {
  int n = 0;
  std::ifstream(file) >> n;
  return n;
}

// Runs `body` in a child and gives its exit status, or -signal.
template <typename Body>
int in_child(Body&& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    try {
      body();
    } catch (const std::exception& error) {
      fprintf(stderr, "child: %s\n", error.what());
      ::_exit(1);
    }
    ::_exit(kAllDone);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// The file holds the first requests, unharmed and once each, and at least those that were flushed.
void expect_sound(const std::filesystem::path& file, int flushed) {
  const auto contents = read_result(file, kTokensAndSteps);
  const auto num_rows = static_cast<int>(contents.requests.size());
  EXPECT_GE(num_rows, flushed);
  for (int i = 0; i < num_rows; ++i) {
    const auto& row = contents.requests[static_cast<std::size_t>(i)];
    const auto expected = sample_request(i);
    EXPECT_EQ(row.id, sample_id(i));
    EXPECT_EQ(row.completion_ids, expected.completion_ids);
    EXPECT_EQ(row.completion_text, expected.completion_text);
  }
  EXPECT_EQ(contents.steps.size(), contents.requests.size());
}

TEST(Crash, EveryStepOfEveryFlush) {
  int killed_runs = 0;
  for (int n = 1;; ++n) {
    const TempDir dir;
    const int status = in_child([&] {
      int calls = 0;
      write_all(dir / "a.h5", dir / "flushed", [&calls, n](std::string_view) {
        if (++calls == n) ::_exit(kKilled);
      });
    });
    if (status == kAllDone) break;
    ASSERT_EQ(status, kKilled) << "step " << n;
    ++killed_runs;
    SCOPED_TRACE(n);
    const int flushed = number_in(dir / "flushed");
    if (std::filesystem::exists(dir / "a.h5")) {
      expect_sound(dir / "a.h5", flushed);
    } else {
      EXPECT_EQ(flushed, 0);
    }
    // The next start cleans up, goes on, and ends with each request once.
    const int resumed = in_child([&] {
      const bool fresh = !std::filesystem::exists(dir / "a.h5");
      auto options = sample_options(dir / "a.h5", kRequests);
      options.existing = fresh ? ExistingFile::kRefuse : ExistingFile::kResume;
      ResumePlan plan;
      if (!fresh) plan = plan_resume(dir / "a.h5", options.facts);
      ResultWriter writer(std::move(options));
      for (int i = 0; i < kRequests; ++i) {
        if (!plan.completed.contains({sample_id(i), 2, 0, false})) writer.submit(sample_request(i));
      }
      writer.finish(ExitCode::kDone);
    });
    ASSERT_EQ(resumed, kAllDone);
    const auto contents = read_result(dir / "a.h5", kTokensAndSteps);
    ASSERT_EQ(contents.requests.size(), std::size_t{kRequests});
    for (int i = 0; i < kRequests; ++i) {
      EXPECT_EQ(contents.requests[static_cast<std::size_t>(i)].completion_ids,
                sample_request(i).completion_ids);
    }
    EXPECT_EQ(contents.passport.text("exit_status"), "done");
    EXPECT_FALSE(std::filesystem::exists(dir / "a.h5.tmp"));
    EXPECT_FALSE(std::filesystem::exists(dir / "a.h5.lock"));
  }
  // First file, a flush a request, and the last one have at least six steps each.
  EXPECT_GT(killed_runs, 6 * (kRequests + 2));
}

// kill -9 in the middle of whatever HDF5 and the kernel are doing.
TEST(Crash, SigkillAtAnyTime) {
  constexpr int kRuns = 25;
  for (int n = 0; n < kRuns; ++n) {
    const TempDir dir;
    const pid_t pid = ::fork();
    if (pid == 0) {
      try {
        write_all(dir / "a.h5", dir / "flushed", {});
      } catch (...) {
      }
      ::_exit(kAllDone);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2 + 4 * n));
    ::kill(pid, SIGKILL);
    int status = 0;
    ::waitpid(pid, &status, 0);
    SCOPED_TRACE(n);
    if (std::filesystem::exists(dir / "a.h5")) {
      expect_sound(dir / "a.h5", number_in(dir / "flushed"));
    }
  }
}

// A step that fails instead of killing: the rows are kept and the next flush writes them.
TEST(Crash, FailedStepIsRetried) {
  for (const std::string_view bad : {"copy", "reserve", "hdf5 open", "hdf5 requests", "hdf5 steps",
                                     "hdf5 close", "sync", "rename"}) {
    SCOPED_TRACE(bad);
    const TempDir dir;
    auto options = sample_options(dir / "a.h5", 2);
    bool armed = false;
    options.before_step = [&armed, bad](std::string_view step) {
      if (armed && step == bad) {
        armed = false;
        throw Error(ExitCode::kInternal, {.what = "No space left on device"});
      }
    };
    ResultWriter writer(std::move(options));
    writer.submit(sample_request(0));
    armed = true;
    EXPECT_FALSE(writer.flush_now(std::chrono::seconds(60)));
    EXPECT_TRUE(read_result(dir / "a.h5", {}).requests.empty());
    writer.submit(sample_request(1));
    EXPECT_TRUE(writer.flush_now(std::chrono::seconds(60)));
    const auto rows = read_result(dir / "a.h5", {}).requests;
    ASSERT_EQ(rows.size(), 2u);
    EXPECT_EQ(rows[0].id, sample_id(0));
    EXPECT_EQ(rows[1].id, sample_id(1));
    writer.finish(ExitCode::kDone);
  }
}

}  // namespace
}  // namespace tandem
