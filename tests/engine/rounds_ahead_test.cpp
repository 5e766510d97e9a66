// Rounds that are launched before the one before has been looked at, as where they are recorded:
// requests, counters and ends are those of rounds one by one, whatever ends them, on one rank and
// on two. The backend under test may run them at once; the order of the host's doings is the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/engine_harness.h"
#include "tests/support/mpi_test_main.h"
#include "tests/support/test_data.h"

namespace tandem::testing {
namespace {

std::vector<std::int32_t> prompt_ids(const std::string& kind, const std::string& name) {
  const auto json = nlohmann::json::parse(read_text(test_data("prompts.json")));
  return json.at(kind).at(name);
}

std::vector<Request> requests(float temperature) {
  std::vector<Request> out;
  for (const char* name : {"zh", "py", "item", "json", "en", "code"}) {
    out.push_back(make_request(name, prompt_ids("tasks", name), 40));
  }
  for (const char* name : {"p7", "p33", "p130"}) {
    out.push_back(make_request(name, prompt_ids("prompts", name), 1 + 7 * std::ssize(out)));
  }
  for (auto& request : out) {
    request.sampling.temperature = temperature;
    request.sampling.seed = 3;
  }
  return out;
}

// Everything of a record but times, steps and what was discarded.
void expect_equal(const RequestRecord& a, const RequestRecord& b, const std::string& what) {
  EXPECT_EQ(a.completion_ids, b.completion_ids) << what << ": " << a.id;
  EXPECT_EQ(a.completion_text, b.completion_text) << what << ": " << a.id;
  EXPECT_EQ(a.finish_reason, b.finish_reason) << what << ": " << a.id;
  EXPECT_EQ(a.draft_rounds, b.draft_rounds) << what << ": " << a.id;
  EXPECT_EQ(a.bonus_tokens, b.bonus_tokens) << what << ": " << a.id;
  EXPECT_EQ(a.draft_proposed, b.draft_proposed) << what << ": " << a.id;
  EXPECT_EQ(a.draft_accepted, b.draft_accepted) << what << ": " << a.id;
  EXPECT_EQ(a.token_steps.size(), a.completion_ids.size());
  EXPECT_TRUE(std::ranges::is_sorted(a.token_steps));
}

struct Outcome {
  std::vector<RequestRecord> records;
  std::vector<StepRecord> steps;
  std::int64_t rounds_ahead = 0;
};

enum class Host { kWaits, kOneBehind };

Outcome run(const HostComm& ranks, const JobConfig& job, const std::vector<Request>& in,
            int concurrency, Host host, const std::vector<std::int32_t>& stop_ids = {}) {
  JobConfig settings = job;
  // Hashes are read between rounds, so the host waits for each also where rounds are recorded.
  settings.output.logit_hash = host == Host::kWaits;
  EngineHarness engine(ranks, settings);
  if (!stop_ids.empty()) engine.replace_stop_ids(stop_ids);
  if (host == Host::kOneBehind) engine.as_recorded();
  Outcome out;
  out.records = engine.run(in, concurrency);
  out.steps = engine.steps();
  out.rounds_ahead = engine.rounds_ahead();
  return out;
}

// The same requests both ways; returns the run of the host that is one round behind.
Outcome expect_no_difference(const JobConfig& job, const std::vector<Request>& in, int concurrency,
                             const std::string& what) {
  const Outcome waits = run(world(), job, in, concurrency, Host::kWaits);
  const Outcome behind = run(world(), job, in, concurrency, Host::kOneBehind);
  EXPECT_EQ(waits.rounds_ahead, 0);
  for (std::size_t i = 0; i < in.size(); ++i) {
    expect_equal(behind.records[i], waits.records[i], what);
  }
  return behind;
}

TEST(RoundsAhead, ChangeNoRequest) {
  for (const float temperature : {0.0f, 0.9f}) {
    for (const int depth : {0, 3}) {
      JobConfig job = tiny_job();
      job.speculative.tokens = depth;
      if (depth == 0) job.speculative.method = SpeculativeMethod::kNone;
      for (const int concurrency : {1, 3, 8}) {
        const Outcome behind =
            expect_no_difference(job, requests(temperature), concurrency,
                                 fmt::format("depth {}, {} at a time", depth, concurrency));
        EXPECT_GT(behind.rounds_ahead, 20) << concurrency << " at a time";
        // Limits are known in time.
        for (const auto& record : behind.records) EXPECT_EQ(record.discarded_tokens, 0);
      }
    }
  }
}

// Steps are told once each, in order, and hold the tokens of the requests and no others.
void expect_steps_of(const Outcome& outcome) {
  std::int64_t tokens = 0, of_requests = 0, next = 0;
  for (const auto& step : outcome.steps) {
    if (step.rank != 0) continue;
    EXPECT_EQ(step.step, next++);
    tokens += step.output_tokens;
  }
  for (const auto& record : outcome.records) {
    of_requests += std::ssize(record.completion_ids);
    EXPECT_LT(record.token_steps.back(), next);
  }
  EXPECT_EQ(tokens, of_requests);
}

TEST(RoundsAhead, EveryStepIsTold) {
  expect_steps_of(run(world(), tiny_job(), requests(0), 3, Host::kOneBehind));
}

// Stop ids end a slot on the device, so that its next round is empty.
TEST(RoundsAhead, StopIdsAreSeenInTime) {
  auto in = requests(0);
  const Outcome whole = run(world(), tiny_job(), in, 4, Host::kWaits);
  // Tokens from the middle of two completions take the place of the model's own.
  const auto& a = whole.records[0].completion_ids;
  const auto& b = whole.records[4].completion_ids;
  const std::vector<std::int32_t> ids = {a[a.size() / 2], b[b.size() / 2]};
  for (auto& request : in) request.sampling.ignore_eos = false;
  const Outcome waits = run(world(), tiny_job(), in, 4, Host::kWaits, ids);
  const Outcome behind = run(world(), tiny_job(), in, 4, Host::kOneBehind, ids);
  int stopped = 0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    expect_equal(behind.records[i], waits.records[i], "stop ids");
    // Only what the same round accepted behind the stop id.
    EXPECT_EQ(behind.records[i].discarded_tokens, waits.records[i].discarded_tokens);
    stopped += behind.records[i].finish_reason == FinishReason::kStop ? 1 : 0;
  }
  EXPECT_GE(stopped, 2);
}

// Stop strings are the host's to find: what was computed meanwhile is counted and thrown away.
TEST(RoundsAhead, StopStringsAreSeenOneRoundLate) {
  auto in = requests(0);
  const Outcome whole = run(world(), tiny_job(), in, 4, Host::kWaits);
  int with_stop = 0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const std::string& text = whole.records[i].completion_text;
    if (text.size() < 24) continue;
    // From the middle of what it will write; cut between characters.
    auto at = text.size() / 2;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
    auto end = std::min(text.size(), at + 4);
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) ++end;
    in[i].sampling.stop_scope = StopScope::kAll;
    in[i].sampling.stop = {text.substr(at, end - at)};
    ++with_stop;
  }
  ASSERT_GT(with_stop, 3);
  for (const int concurrency : {1, 4}) {
    const Outcome behind = expect_no_difference(tiny_job(), in, concurrency, "stop strings");
    std::int64_t stopped = 0, discarded = 0;
    for (const auto& record : behind.records) {
      stopped += record.finish_reason == FinishReason::kStop ? 1 : 0;
      discarded += record.discarded_tokens;
    }
    EXPECT_GT(stopped, 2);
    expect_steps_of(behind);
    EXPECT_GE(discarded, 1) << "no stop string was found late";
  }
}

// Pages run out: whoever would have to be preempted is, but never under a running round.
TEST(RoundsAhead, SequencesArePreemptedBetweenRounds) {
  JobConfig job = tiny_job();
  job.scheduler.max_context = 512;
  job.scheduler.prefix_cache = false;
  job.memory.kv_bytes = std::int64_t{4} * 1024 * 400 / world().size();
  const Outcome behind = expect_no_difference(job, requests(0), 8, "preemption");
  EXPECT_GT(behind.rounds_ahead, 0);
}

TEST(RoundsAhead, DepthMayAdapt) {
  JobConfig job = tiny_job();
  job.speculative.adaptive = true;
  job.speculative.tokens = 4;
  const Outcome waits = run(world(), job, requests(0), 3, Host::kWaits);
  const Outcome behind = run(world(), job, requests(0), 3, Host::kOneBehind);
  for (std::size_t i = 0; i < waits.records.size(); ++i) {
    EXPECT_EQ(behind.records[i].completion_ids, waits.records[i].completion_ids);
  }
  EXPECT_GT(behind.rounds_ahead, 5);
}

}  // namespace
}  // namespace tandem::testing
