// Sampling with speculation on a whole engine: every token and every bit of its logits as without,
// and a distribution of the first tokens that is the model's own, computed from its logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <map>

#include "tests/models/reference_data.h"
#include "tests/speculative/goodness_of_fit.h"
#include "tests/speculative/markov_target.h"
#include "tests/support/engine_harness.h"
#include "tests/support/mpi_test_main.h"

namespace tandem::testing {
namespace {

const char* const kModel = "tiny-qwen3.8";

Tokens prompt_of(const std::string& task) {
  static const ReferenceTensors reference(kModel);
  return reference.ints("task." + task + ".ids");
}

JobConfig speculative_job(ActivationDType activations, int tokens) {
  JobConfig job = tiny_job();
  job.model.activation_dtype = activations;
  job.memory.kv_bytes = std::int64_t{16} << 20;
  job.scheduler.max_context = 256;
  job.speculative.method = tokens == 0 ? SpeculativeMethod::kNone : SpeculativeMethod::kMtp;
  job.speculative.tokens = std::max(1, tokens);
  job.output.logit_hash = true;
  return job;
}

std::vector<Request> sampled_requests(const std::string& task, int count, int max_tokens,
                                      const ops::SampleParams& params) {
  std::vector<Request> out;
  for (int i = 0; i < count; ++i) {
    out.push_back(make_request(fmt::format("{}-{}", task, i), prompt_of(task), max_tokens));
    auto& s = out.back().sampling;
    s.temperature = params.temperature;
    s.top_p = params.top_p;
    s.top_k = params.top_k;
    s.min_p = params.min_p;
    s.seed = 5;
  }
  return out;
}

TEST(SampledSpeculation, DepthChangesNoTokenAndNoLogit) {
  const ops::SampleParams params{.temperature = 0.8f, .top_p = 0.95f};
  auto requests = sampled_requests("en", 6, 40, params);
  for (auto& r : sampled_requests("code", 6, 40, {.temperature = 1})) requests.push_back(r);
  std::vector<RequestRecord> plain;
  for (const int depth : {0, 1, 3, 5}) {
    EngineHarness engine(world(), speculative_job(ActivationDType::kBf16, depth));
    const auto records = engine.run(requests, 4);
    if (depth == 0) {
      plain = records;
      continue;
    }
    std::int64_t proposed = 0, accepted = 0;
    for (std::size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(records[i].completion_ids, plain[i].completion_ids) << "depth " << depth;
      EXPECT_EQ(records[i].logit_hashes, plain[i].logit_hashes) << "depth " << depth;
      for (const auto n : records[i].draft_proposed) proposed += n;
      for (const auto n : records[i].draft_accepted) accepted += n;
    }
    // Drafts of both fates, or the comparison shows nothing.
    EXPECT_GT(accepted, proposed / 20);
    EXPECT_LT(accepted, proposed * 19 / 20);
  }
}

// A token is the draw of its own row under (seed, request, position), wherever and with whatever it
// was computed: done again here from the logits of a prompt pass.
TEST(SampledSpeculation, EveryTokenIsTheKeyedDrawOfItsRow) {
  EngineHarness engine(world(), speculative_job(ActivationDType::kFp32, 3));
  const auto requests = sampled_requests("en", 4, 16, {.temperature = 1.5f});
  const auto records = engine.run(requests, 4);
  auto& backend = engine.parts().backend();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto& s = requests[i].sampling;
    Tokens ids = requests[i].prompt_ids;
    for (const auto token : records[i].completion_ids) {
      engine.prompt_pass(ids);
      const auto logits = engine.last_logits(1);
      const auto vocab = static_cast<std::int64_t>(logits.size());
      std::vector<std::byte> scratch(ops::sample_scratch_bytes(backend, vocab));
      const ops::SampleParams params{.temperature = s.temperature,
                                     .key = {.seed = s.seed, .request = request_key(requests[i])},
                                     .position = static_cast<std::uint32_t>(ids.size())};
      ops::SampleResult draw;
      ops::sample_rows(backend, {.logits = logits.data(),
                                 .stride = vocab,
                                 .num_rows = 1,
                                 .valid_vocab = engine.files().tokenizer.vocab_size(),
                                 .params = &params,
                                 .out = &draw,
                                 .scratch = scratch.data()});
      EXPECT_EQ(token, draw.id) << requests[i].id << ", position " << ids.size();
      ids.push_back(token);
    }
  }
}

struct Setting {
  std::string task;
  ops::SampleParams params;
};

class SampledDistribution : public ::testing::TestWithParam<Setting> {};

// The model's distribution of the token behind prompt + generated.
std::vector<double> next_token(EngineHarness& engine, const Setting& setting,
                               const Tokens& generated) {
  Tokens ids = prompt_of(setting.task);
  ids.insert(ids.end(), generated.begin(), generated.end());
  engine.prompt_pass(ids);
  return exact_distribution(engine.last_logits(1), setting.params);
}

TEST_P(SampledDistribution, FirstTokensFollowTheModel) {
  const Setting& setting = GetParam();
  EngineHarness engine(world(), speculative_job(ActivationDType::kFp32, 3));

  // All sequences of three tokens that the filters allow.
  std::map<std::array<std::int32_t, 3>, std::size_t> cell_of;
  std::vector<double> probabilities;
  const auto walk = [&](const auto& self, const Tokens& prefix, double probability) -> void {
    if (prefix.size() == 3) {
      cell_of[{prefix[0], prefix[1], prefix[2]}] = probabilities.size();
      probabilities.push_back(probability);
      return;
    }
    const auto p = next_token(engine, setting, prefix);
    for (std::size_t id = 0; id < p.size(); ++id) {
      if (p[id] == 0) continue;
      Tokens longer = prefix;
      longer.push_back(static_cast<std::int32_t>(id));
      self(self, longer, probability * p[id]);
    }
  };
  walk(walk, {}, 1.0);
  const std::size_t impossible = probabilities.size();
  probabilities.push_back(0);

  constexpr int kRequests = 1500;
  std::map<std::string, Tokens> first_drafts;  // by request
  double rounds = 0, first_accepted = 0;
  const auto records = engine.run(
      sampled_requests(setting.task, kRequests, 5, setting.params), 8,
      [&](const InFlight& request, std::span<const std::int32_t> drafts, int accepted) {
        if (!first_drafts.try_emplace(request.request().id, drafts.begin(), drafts.end()).second) {
          return;
        }
        ++rounds;
        if (accepted > 0) ++first_accepted;
      });
  EXPECT_GT(first_accepted, 0.1 * rounds);
  EXPECT_LT(first_accepted, 0.9 * rounds);

  std::vector<std::int64_t> counts(probabilities.size(), 0);
  std::vector<std::int64_t> if_all_were_accepted = counts;
  const auto count = [&](std::vector<std::int64_t>& into, std::int32_t a, std::int32_t b,
                         std::int32_t c) {
    const auto it = cell_of.find({a, b, c});
    ++into[it == cell_of.end() ? impossible : it->second];
  };
  for (const auto& record : records) {
    const auto& t = record.completion_ids;
    count(counts, t[0], t[1], t[2]);
    const auto& drafts = first_drafts.at(record.id);
    ASSERT_EQ(drafts.size(), 3u);
    count(if_all_were_accepted, t[0], drafts[0], drafts[1]);
  }
  const Fit fit = goodness_of_fit(counts, probabilities);
  EXPECT_TRUE(fit.agrees()) << fit;
  EXPECT_GT(fit.cells, 10) << fit;
  std::cout << "drafts accepted " << first_accepted / rounds << "; " << fit << "\n";
  // The same statistic on what a verifier that accepts everything would have emitted.
  const Fit wrong = goodness_of_fit(if_all_were_accepted, probabilities);
  EXPECT_FALSE(wrong.agrees()) << wrong;
}

INSTANTIATE_TEST_SUITE_P(Settings, SampledDistribution,
                         ::testing::Values(Setting{"code", {.temperature = 0.8f, .top_k = 6}},
                                           Setting{"en",
                                                   {.temperature = 1, .top_p = 0.9f, .top_k = 8}},
                                           Setting{"en", {.temperature = 1, .min_p = 0.15f}}),
                         [](const auto& p) { return p.param.task + std::to_string(p.index); });

}  // namespace
}  // namespace tandem::testing
