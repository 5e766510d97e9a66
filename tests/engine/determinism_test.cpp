// determinism.md's promises, by hashes of the fp32 logits behind every emitted
// token: equal bit for bit over ranks, concurrency, batch composition, chunk sizes, page sizes,
// prefix hits, preemption, threads and depth of speculation. And, so that these tests are known to
// be able to fail, a run whose arithmetic is changed on purpose. Made for four ranks; with fewer
// (GPUs) the groups that need more are left out, and said so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/support/engine_harness.h"
#include "tests/support/mpi_test_main.h"
#include "tests/support/test_data.h"

namespace tandem::testing {
namespace {

struct Output {
  std::vector<std::int32_t> ids;
  std::vector<std::uint64_t> hashes;
  bool operator==(const Output&) const = default;
};

std::vector<std::int32_t> prompt_ids(const std::string& kind, const std::string& name) {
  const auto json = nlohmann::json::parse(read_text(test_data("prompts.json")));
  return json.at(kind).at(name);
}

// Short, chat, long (beyond two chunks of 64 and one attention partition), and pairs that share a
// prefix of 130 tokens, so that prefix hits have something to hit.
std::vector<Request> requests(float temperature) {
  std::vector<Request> out;
  for (const char* name : {"p7", "p33", "p130", "p300"}) {
    out.push_back(make_request(name, prompt_ids("prompts", name), 24));
  }
  for (const char* name : {"zh", "json"}) {
    out.push_back(make_request(name, prompt_ids("tasks", name), 24));
  }
  auto shared = prompt_ids("prompts", "p130");
  for (int i = 0; i < 3; ++i) {
    auto ids = shared;
    for (int j = 0; j <= i; ++j) ids.push_back(100 + 7 * i + j);
    out.push_back(make_request("shared" + std::to_string(i), ids, 16));
  }
  for (auto& request : out) {
    request.sampling.temperature = temperature;
    request.sampling.top_p = temperature > 0 ? 0.95f : 1.0f;
    request.sampling.seed = 17;
  }
  return out;
}

JobConfig base_job(ActivationDType activations) {
  JobConfig job = tiny_job();
  job.model.activation_dtype = activations;
  job.output.logit_hash = true;
  job.run.determinism = DeterminismLevel::kRankInvariant;
  return job;
}

struct Variant {
  std::string name;
  JobConfig job;
  int concurrency = 3;
  int num_ranks = 1;
  int num_threads = 1;
  bool as_recorded = false;
};

std::vector<Variant> variants(const JobConfig& base) {
  std::vector<Variant> all;
  const auto add = [&](std::string name, auto&& change) {
    Variant v{.name = std::move(name), .job = base};
    change(v);
    all.push_back(std::move(v));
  };
  add("one at a time", [](Variant& v) { v.concurrency = 1; });
  add("eight at a time", [](Variant& v) { v.concurrency = 8; });
  add("16 tokens a batch", [](Variant& v) { v.job.scheduler.max_batched_tokens = 16; });
  add("64 tokens a batch", [](Variant& v) { v.job.scheduler.max_batched_tokens = 64; });
  add("2048 tokens a batch", [](Variant& v) { v.job.scheduler.max_batched_tokens = 2048; });
  add("pages of 8", [](Variant& v) { v.job.memory.page_tokens = 8; });
  add("pages of 64", [](Variant& v) { v.job.memory.page_tokens = 64; });
  add("pages of 256", [](Variant& v) { v.job.memory.page_tokens = 256; });
  add("no prefix cache", [](Variant& v) { v.job.scheduler.prefix_cache = false; });
  add("no speculation", [](Variant& v) { v.job.speculative.method = SpeculativeMethod::kNone; });
  add("depth 1", [](Variant& v) { v.job.speculative.tokens = 1; });
  add("depth 5", [](Variant& v) { v.job.speculative.tokens = 5; });
  add("adaptive depth", [](Variant& v) {
    v.job.speculative.adaptive = true;
    v.job.speculative.tokens = 4;
  });
  add("padded rounds, five at a time", [](Variant& v) {
    v.as_recorded = true;
    v.concurrency = 5;
  });
  add("padded rounds of adaptive depth, two ranks", [](Variant& v) {
    v.as_recorded = true;
    v.num_ranks = 2;
    v.job.speculative.adaptive = true;
  });
  add("two threads", [](Variant& v) { v.num_threads = 2; });
  add("two ranks", [](Variant& v) { v.num_ranks = 2; });
  add("four ranks", [](Variant& v) { v.num_ranks = 4; });
  add("four ranks, depth 2, 48 tokens a batch, no prefix cache", [](Variant& v) {
    v.num_ranks = 4;
    v.job.speculative.tokens = 2;
    v.job.scheduler.max_batched_tokens = 48;
    v.job.scheduler.prefix_cache = false;
  });
  return all;
}

// Runs on the first v.num_ranks ranks of the world; every rank of it gets the outputs, others none.
std::optional<std::map<std::string, Output>> run(const Variant& v, const std::vector<Request>& in) {
  const bool member = world().rank() < v.num_ranks;
  const HostComm group = world().split(member ? 0 : 1, world().rank());
  std::optional<std::map<std::string, Output>> out;
  if (member) {
    omp_set_num_threads(v.num_threads);
    EngineHarness engine(group, v.job);
    if (v.as_recorded) engine.as_recorded();
    out.emplace();
    for (auto& record : engine.run(in, v.concurrency)) {
      (*out)[record.id] = {record.completion_ids, record.logit_hashes};
    }
    omp_set_num_threads(1);
  }
  world().barrier();
  return out;
}

void expect_equal(const std::map<std::string, Output>& expected,
                  const std::map<std::string, Output>& actual, const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size());
  for (const auto& [id, output] : expected) {
    EXPECT_EQ(actual.at(id).ids, output.ids) << what << ": tokens of " << id;
    EXPECT_EQ(actual.at(id).hashes, output.hashes) << what << ": logits of " << id;
  }
}

class Determinism : public ::testing::TestWithParam<std::tuple<ActivationDType, KvDType, float>> {};

TEST_P(Determinism, LogitsAreBitEqualOverTheWholeList) {
  const auto [activations, kv_dtype, temperature] = GetParam();
  JobConfig base = base_job(activations);
  base.memory.kv_dtype = kv_dtype;
  const auto in = requests(temperature);
  const auto expected = run({.name = "baseline", .job = base}, in);
  for (const auto& v : variants(base)) {
    if (v.num_ranks > world().size()) {
      if (world().rank() == 0) std::cerr << "left out: " << v.name << '\n';
      continue;
    }
    const auto actual = run(v, in);
    if (actual && expected) expect_equal(*expected, *actual, v.name);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Determinism,
    ::testing::Values(std::tuple{ActivationDType::kBf16, KvDType::kAuto, 0.0f},
                      std::tuple{ActivationDType::kBf16, KvDType::kAuto, 0.8f},
                      std::tuple{ActivationDType::kBf16, KvDType::kFp8Dynamic, 0.8f},
                      std::tuple{ActivationDType::kFp32, KvDType::kAuto, 0.0f}));

// A pool so small that sequences must be preempted and computed again.
class DeterminismUnderPreemption : public ::testing::TestWithParam<KvDType> {};

TEST_P(DeterminismUnderPreemption, LogitsAreBitEqual) {
  JobConfig base = base_job(ActivationDType::kBf16);
  base.memory.kv_dtype = GetParam();
  base.scheduler.max_context = 512;
  const auto in = requests(0.0f);
  const auto expected = run({.name = "baseline", .job = base, .concurrency = 8}, in);

  const int ranks = std::min(2, world().size());
  const bool member = world().rank() < ranks;
  const HostComm group = world().split(member ? 0 : 1, world().rank());
  if (member) {
    JobConfig small = base;
    small.scheduler.prefix_cache = false;
    // Two KV heads of 256 in two layers (model and MTP), K and V, BF16: 4 KiB a token, over the
    // ranks. With FP8 the model's layer takes half and the scales.
    const int token_bytes = GetParam() == KvDType::kFp8Dynamic ? 3088 : 4096;
    small.memory.kv_bytes = std::int64_t{token_bytes} * 400 / ranks;
    EngineHarness engine(group, small);
    engine.as_recorded();
    std::map<std::string, Output> actual;
    std::int64_t prompt_rows = 0;
    for (auto& record : engine.run(in, 8)) {
      actual[record.id] = {record.completion_ids, record.logit_hashes};
    }
    std::int64_t prompt_tokens = 0;
    for (const auto& request : in) prompt_tokens += std::ssize(request.prompt_ids);
    for (const auto& step : engine.steps()) {
      if (step.rank == 0) prompt_rows += step.prompt_tokens;
    }
    EXPECT_GT(prompt_rows, prompt_tokens) << "nothing was preempted: the pool is too large";
    if (expected) expect_equal(*expected, actual, "preempted");
  }
  world().barrier();
}

INSTANTIATE_TEST_SUITE_P(All, DeterminismUnderPreemption,
                         ::testing::Values(KvDType::kAuto, KvDType::kFp8Dynamic));

// One request watched through batches drawn at random.
TEST(DeterminismInRandomCompany, TheWatchedRequestsLogitsNeverChange) {
  if (world().rank() == 0) {
    const HostComm alone = world().split(0, 0);
    EngineHarness engine(alone, base_job(ActivationDType::kBf16));
    const auto watched = make_request("watched", prompt_ids("prompts", "p130"), 20);
    const auto record = engine.run({watched}, 1)[0];
    const Output expected{record.completion_ids, record.logit_hashes};
    std::mt19937 random(1);
    for (int trial = 0; trial < 8; ++trial) {
      std::vector<Request> batch;
      const int others = 1 + static_cast<int>(random() % 7);
      for (int i = 0; i < others; ++i) {
        std::vector<std::int32_t> ids(1 + random() % 200);
        for (auto& id : ids) id = static_cast<std::int32_t>(random() % 4000);
        batch.push_back(
            make_request("other" + std::to_string(i), ids, 1 + static_cast<int>(random() % 30)));
      }
      batch.insert(batch.begin() + static_cast<std::ptrdiff_t>(random() % (batch.size() + 1)),
                   watched);
      const auto records = engine.run(batch, 1 + static_cast<int>(random() % 8));
      for (const auto& r : records) {
        if (r.id == "watched") {
          EXPECT_EQ((Output{r.completion_ids, r.logit_hashes}), expected) << "trial " << trial;
        }
      }
    }
  } else {
    world().split(1, world().rank());
  }
  world().barrier();
}

// Ranks that emit different tokens must notice. Each rank draws with a seed of its own, so the
// first sampled tokens differ although the logits are equal.
TEST(DeterminismGuard, DivergingRanksStopTheJob) {
  if (world().size() < 2) GTEST_SKIP() << "one rank cannot differ";
  const bool member = world().rank() < 2;
  const HostComm group = world().split(member ? 0 : 1, world().rank());
  if (member) {
    EngineHarness engine(group, base_job(ActivationDType::kBf16));
    auto request = make_request("x", prompt_ids("prompts", "p33"), 32);
    request.sampling.temperature = 50.0f;
    request.sampling.seed = static_cast<std::uint64_t>(world().rank());
    try {
      engine.run({request}, 1);
      ADD_FAILURE() << "the ranks did not notice";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kRankFailure);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("diverge"));
    }
  }
  world().barrier();
}

// The checks above must be able to fail: a KV cache in another precision changes logits in the last
// bits only, and the hashes see it.
TEST(DeterminismMutation, AChangeOfRoundingIsSeen) {
  if (world().rank() == 0) {
    const HostComm alone = world().split(0, 0);
    JobConfig job = base_job(ActivationDType::kFp32);
    const auto in = {make_request("p33", prompt_ids("prompts", "p33"), 8)};
    EngineHarness exact(alone, job);
    const auto a = exact.run(in, 1)[0];
    job.memory.kv_dtype = KvDType::kBf16;
    EngineHarness rounded(alone, job);
    const auto b = rounded.run(in, 1)[0];
    EXPECT_EQ(a.completion_ids, b.completion_ids);
    EXPECT_NE(a.logit_hashes, b.logit_hashes);
  } else {
    world().split(1, world().rank());
  }
  world().barrier();
}

}  // namespace
}  // namespace tandem::testing
