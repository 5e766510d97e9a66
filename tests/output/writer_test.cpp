#include "output/result_writer.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "output/columns.h"
#include "output/result_reader.h"
#include "tests/output/sample_records.h"
#include "tests/support/test_data.h"

namespace tandem {
namespace {

using testing::sample_options;
using testing::sample_request;
using testing::TempDir;

constexpr ReadOptions kEverything{.tokens = true, .text = true, .steps = true, .samples = true};

StepRecord step_of(std::int64_t number, std::int64_t output_tokens) {
  StepRecord step;
  step.step = number;
  step.start_s = 0.1 * static_cast<double>(number);
  step.duration_s = 0.05;
  step.output_tokens = output_tokens;
  step.draft_tokens = 4;
  step.accepted_tokens = 3;
  step.collective_s = 0.001;
  return step;
}

TEST(ResultWriter, FileIsReadableFromTheStart) {
  const TempDir dir;
  const ResultWriter writer(sample_options(dir / "a.h5", 2));
  const auto contents = read_result(dir / "a.h5", kEverything);
  EXPECT_TRUE(contents.requests.empty());
  EXPECT_EQ(contents.passport.text("exit_status"), "running");
  ASSERT_EQ(contents.sessions.size(), 1u);
  EXPECT_EQ(contents.sessions[0].exit_status, "running");
  EXPECT_FALSE(contents.sessions[0].exit_code.has_value());
  EXPECT_EQ(contents.facts.prompts.size(), 2u);
}

TEST(ResultWriter, GivesBackWhatItWasGiven) {
  const TempDir dir;
  {
    ResultWriter writer(sample_options(dir / "a.h5", 3));
    auto first = sample_request(0);
    first.logprobs = std::vector<double>(8, -1.0);
    first.logit_hashes = std::vector<std::uint64_t>(8, 0xfedcba9876543210u);
    first.json_valid = true;
    writer.submit(std::move(first));
    ASSERT_TRUE(writer.flush_now(std::chrono::seconds(30)));
    auto failed = sample_request(1, 0);
    failed.finish_reason = FinishReason::kError;
    failed.error_class = "never_fits";
    failed.error_text = std::string(3000, 'x');
    failed.arrival_s.reset();
    failed.scheduled_s.reset();
    writer.submit(std::move(failed));
    auto third = sample_request(2);
    third.draft_proposed = {4, 4, 4};
    third.draft_accepted = {4, 2, 1};
    writer.submit(std::move(third));
    writer.submit(step_of(0, 10));
    writer.submit(step_of(1, 6));
    MemoryRow memory;
    memory.rss_bytes = 12;
    writer.submit(memory);
    PowerSample power;
    power.power_w = 40.5;
    writer.submit(power);
    CanaryRecord canary;
    canary.name = "copy";
    writer.submit(canary);
    writer.submit(LogEvent{.time_s = 2, .level = LogLevel::kWarning, .text = "no NVML here"});
    GroupRecord group;
    group.concurrency = 2;
    group.start_s = 0.1;
    writer.submit(group);
    group.end_s = 2.1;
    writer.submit(group);
    writer.finish(ExitCode::kSomeFailed);
  }
  const auto contents = read_result(dir / "a.h5", kEverything);
  ASSERT_EQ(contents.requests.size(), 3u);
  const auto& first = contents.requests[0];
  const auto expected = sample_request(0);
  EXPECT_EQ(first.id, expected.id);
  EXPECT_EQ(first.tags, expected.tags);
  EXPECT_EQ(first.prompt_ids, expected.prompt_ids);
  EXPECT_EQ(first.completion_ids, expected.completion_ids);
  EXPECT_EQ(first.token_times_s, expected.token_times_s);
  EXPECT_EQ(first.token_steps, expected.token_steps);
  EXPECT_EQ(first.logit_hashes.at(7), 0xfedcba9876543210u);
  EXPECT_EQ(first.logprobs.at(0), -1.0);
  EXPECT_EQ(first.completion_text, expected.completion_text);
  EXPECT_EQ(first.prompt_tokens, 3);
  EXPECT_EQ(first.completion_tokens, 8);
  EXPECT_EQ(first.accepted_tokens, 4);
  EXPECT_EQ(first.json_valid, std::optional<bool>(true));
  EXPECT_FALSE(first.exact_match.has_value());
  EXPECT_NEAR(first.ttft_s.value(), 0.02, 1e-12);
  EXPECT_NEAR(first.decode_tokens_per_s.value(), 7 / 0.03, 1e-6);

  const auto& failed = contents.requests[1];
  EXPECT_EQ(failed.finish_reason, FinishReason::kError);
  EXPECT_EQ(failed.error_class, "never_fits");
  EXPECT_EQ(failed.error_text.size(), 1024u);
  EXPECT_FALSE(failed.ttft_s.has_value()) << "missing, not 0";
  EXPECT_FALSE(failed.decode_tokens_per_s.has_value());
  EXPECT_TRUE(contents.requests[2].logprobs.empty());
  EXPECT_EQ(contents.requests[2].draft_accepted, (std::vector<std::int64_t>{4, 2, 1}));
  EXPECT_EQ(contents.requests[0].draft_accepted, (std::vector<std::int64_t>{4, 0, 0}));

  ASSERT_EQ(contents.steps.size(), 2u);
  EXPECT_EQ(contents.steps[1].output_tokens, 6);
  EXPECT_FALSE(contents.steps[1].wait_rank_s.has_value());
  ASSERT_EQ(contents.memory.size(), 1u);
  EXPECT_EQ(contents.memory[0].rss_bytes, std::optional<std::int64_t>(12));
  EXPECT_FALSE(contents.memory[0].swap_used_bytes.has_value());
  ASSERT_EQ(contents.log.size(), 1u);
  EXPECT_EQ(contents.log[0].text, "no NVML here");
  ASSERT_EQ(contents.groups.size(), 1u);
  EXPECT_EQ(contents.groups[0].end_s, std::optional<double>(2.1));
  EXPECT_EQ(contents.passport.text("exit_status"), "some_requests_failed");
  EXPECT_EQ(contents.sessions.at(0).exit_code, std::optional<std::int64_t>(8));
  ASSERT_EQ(contents.summary.size(), 2u);
  EXPECT_EQ(contents.summary[0].cache, "all");
  EXPECT_NEAR(contents.summary[0].tokens_per_s.value(), 16 / 2.0, 1e-9);
  EXPECT_FALSE(std::filesystem::exists(dir / "a.h5.lock"));
  EXPECT_FALSE(std::filesystem::exists(dir / "a.h5.tmp"));
}

// The number of tokens is counted in the steps and in the requests; both must agree (F37).
TEST(ResultWriter, StepTokensMustEqualRequestTokens) {
  const TempDir dir;
  ResultWriter writer(sample_options(dir / "a.h5", 1));
  writer.submit(sample_request(0));
  writer.submit(step_of(0, 7));
  try {
    writer.finish(ExitCode::kDone);
    FAIL() << "7 and 8 tokens passed for equal";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInternal);
    EXPECT_NE(std::string(error.what()).find("made 7 tokens, its requests hold 8"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(read_result(dir / "a.h5", {}).requests.size(), 1u) << "the rows are saved all the same";
}

TEST(ResultWriter, RefusesBrokenRecords) {
  const TempDir dir;
  ResultWriter writer(sample_options(dir / "a.h5", 1));
  const auto refused = [&writer](auto&& spoil) {
    auto record = sample_request(0);
    spoil(record);
    EXPECT_THROW(writer.submit(std::move(record)), Error);
  };
  refused([](RequestRecord& r) { r.draft_accepted = {5, 0}; });
  refused([](RequestRecord& r) { r.draft_accepted = {4}; });
  refused([](RequestRecord& r) { r.token_times_s.pop_back(); });
  refused([](RequestRecord& r) { r.token_steps.push_back(9); });
  refused([](RequestRecord& r) { r.logprobs = {-1.0}; });
  refused([](RequestRecord& r) { r.first_token_s = 0.05; });  // before its arrival
  refused([](RequestRecord& r) { r.token_times_s.front() = 9; });
  refused([](RequestRecord& r) { r.thinking_tokens = 9; });
  refused([](RequestRecord& r) { r.cached_prompt_tokens = 4; });
  refused([](RequestRecord& r) { r.finish_reason = FinishReason::kError; });
  refused([](RequestRecord& r) { r.error_class = "x"; });
  refused([](RequestRecord& r) { r.arrival_s = std::numeric_limits<double>::quiet_NaN(); });
  auto step = step_of(0, 1);
  step.accepted_tokens = 5;
  EXPECT_THROW(writer.submit(step), Error);
  step = step_of(0, 1);
  step.collective_s = std::numeric_limits<double>::infinity();
  EXPECT_THROW(writer.submit(step), Error);
  writer.submit(sample_request(0));
  writer.finish(ExitCode::kDone);
  EXPECT_EQ(read_result(dir / "a.h5", {}).requests.size(), 1u);
}

TEST(ResultWriter, FlushesByItself) {
  const TempDir dir;
  auto options = sample_options(dir / "a.h5", 1);
  options.flush_every_s = 0.05;
  ResultWriter writer(std::move(options));
  writer.submit(sample_request(0));
  const auto start = std::chrono::steady_clock::now();
  while (read_result(dir / "a.h5", {}).requests.empty()) {
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  }
}

// Engine, sampler, log and failure guard all hand over rows while the writer thread flushes.
TEST(ResultWriter, ManyThreadsSubmit) {
  constexpr std::int64_t kThreads = 4;
  constexpr std::int64_t kEach = 100;
  const TempDir dir;
  auto options = sample_options(dir / "a.h5", kThreads * kEach);
  options.flush_every_s = 0.01;
  options.max_pending_bytes = 20'000;  // a few rows: back-pressure all the time
  ResultWriter writer(std::move(options));
  log_set_sink([&writer](LogLevel level, std::string_view text) {
    writer.submit(LogEvent{.level = level, .text = std::string(text)});
  });
  std::vector<std::thread> threads;
  for (std::int64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&writer, t] {
      for (std::int64_t i = 0; i < kEach; ++i) writer.submit(sample_request(t * kEach + i));
    });
  }
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(writer.flush_now(std::chrono::seconds(60)));
  for (auto& thread : threads) thread.join();
  log_set_sink(nullptr);
  writer.finish(ExitCode::kDone);
  const auto contents = read_result(dir / "a.h5", kEverything);
  std::set<std::string> ids;
  for (const auto& row : contents.requests) ids.insert(row.id);
  EXPECT_EQ(contents.requests.size(), static_cast<std::size_t>(kThreads * kEach));
  EXPECT_EQ(ids.size(), contents.requests.size());
  ASSERT_FALSE(contents.log.empty()) << "the back-pressure warning";
  EXPECT_NE(contents.log[0].text.find("the engine waits for the disk"), std::string::npos);
}

TEST(ResultWriter, LeavesNoTraceBeforePublish) {
  const TempDir dir;
  auto options = sample_options(dir / "a.h5", 1);
  options.first_file = FirstFile::kAtPublish;
  options.flush_every_s = 0.01;
  {
    ResultWriter writer(options);
    writer.submit(sample_request(0));
    EXPECT_TRUE(writer.flush_now(std::chrono::seconds(5)));
    EXPECT_FALSE(std::filesystem::exists(dir / "a.h5"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));

  {
    ResultWriter writer(options);
    writer.submit(sample_request(0));
    writer.publish();
    EXPECT_TRUE(std::filesystem::exists(dir / "a.h5"));
    writer.finish(ExitCode::kInterrupted);
  }
  const auto before = testing::read_text(dir / "a.h5");
  for (const auto existing : {ExistingFile::kOverwrite, ExistingFile::kResume}) {
    options.existing = existing;
    { const ResultWriter given_up(options); }
    EXPECT_EQ(testing::read_text(dir / "a.h5"), before);
  }
}

TEST(ResultWriter, PublishRefusesAFileThatCameMeanwhile) {
  const TempDir dir;
  auto options = sample_options(dir / "a.h5", 1);
  options.first_file = FirstFile::kAtPublish;
  ResultWriter writer(options);
  testing::write_text(dir / "a.h5", "somebody else's");
  EXPECT_THROW(writer.publish(), Error);
  EXPECT_EQ(testing::read_text(dir / "a.h5"), "somebody else's");
}

TEST(ResultWriter, DestructorSavesWithoutFinish) {
  const TempDir dir;
  {
    ResultWriter writer(sample_options(dir / "a.h5", 1));
    writer.submit(sample_request(0));
  }
  const auto contents = read_result(dir / "a.h5", {});
  EXPECT_EQ(contents.requests.size(), 1u);
  EXPECT_EQ(contents.passport.text("exit_status"), "running");
}

TEST(ResultWriter, PassportGrowsDuringTheRun) {
  const TempDir dir;
  ResultWriter writer(sample_options(dir / "a.h5", 0));
  Passport more;
  more.set("transport", std::vector<std::string>{"0-1: sockets", "1-0: sockets"});
  more.set("long", std::string(200'000, 'y'));
  writer.add_to_passport(more);
  writer.finish(ExitCode::kInterrupted);
  const auto passport = read_result(dir / "a.h5", {}).passport;
  EXPECT_EQ(passport.text("transport"), "0-1: sockets, 1-0: sockets");
  EXPECT_EQ(passport.text("long").size(), 200'000u);
  EXPECT_EQ(passport.text("exit_status"), "interrupted");
}

TEST(ResultWriter, WidensTextColumns) {
  const TempDir dir;
  ResultWriter writer(sample_options(dir / "a.h5", 0));
  for (const std::size_t length : {3u, 100u, 5000u}) {
    auto record = sample_request(0);
    record.id = std::string(length, 'a') + "\xE2\x82\xAC";
    writer.submit(std::move(record));
    ASSERT_TRUE(writer.flush_now(std::chrono::seconds(30)));
  }
  writer.finish(ExitCode::kDone);
  const auto rows = read_result(dir / "a.h5", {}).requests;
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].id, "aaa\xE2\x82\xAC");
  EXPECT_EQ(rows[1].id.size(), 103u);
  EXPECT_EQ(rows[2].id.size(), 5003u);
}

TEST(ClipText, CutsAtACharacter) {
  EXPECT_EQ(clip_text("short", 16), "short");
  EXPECT_EQ(clip_text("ab\xE2\x82\xAC\xE2\x82\xAC", 7), "ab...");
}

}  // namespace
}  // namespace tandem
