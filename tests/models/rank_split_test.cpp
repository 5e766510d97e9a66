// One model on one, two and four ranks (run with four): equal bits where it divides, a refusal that
// says what does not where it does not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>

#include "tests/models/random_checkpoint.h"
#include "tests/support/engine_harness.h"
#include "tests/support/mpi_test_main.h"
#include "tests/support/test_data.h"

namespace tandem::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kTokens = 10;  // of each request

// A checkpoint that all ranks see; construction and destruction are collective.
class SharedModel {
 public:
  explicit SharedModel(const ModelShape& shape) {
    std::string path;
    if (world().rank() == 0) {
      directory_ = std::make_unique<TempDir>();
      RandomCheckpoint(shape, 1).write(*directory_ / "model");
      path = (*directory_ / "model").string();
    }
    world().bcast(path);
    job_ = tiny_job();
    job_.model.path = path;
    job_.memory.kv_bytes = std::int64_t{2} << 20;
    job_.scheduler.max_context = 256;
    job_.scheduler.max_sequences = 3;
    job_.scheduler.max_batched_tokens = 128;
    job_.output.logit_hash = true;
  }
  ~SharedModel() { world().barrier(); }
  SharedModel(const SharedModel&) = delete;
  SharedModel& operator=(const SharedModel&) = delete;

  JobConfig job(ActivationDType activations) const {
    JobConfig job = job_;
    job.model.activation_dtype = activations;
    return job;
  }

 private:
  std::unique_ptr<TempDir> directory_;
  JobConfig job_;
};

class RankSplit : public ::testing::TestWithParam<ModelShape> {};

// Greedy and sampled requests of several lengths.
std::vector<Request> requests() {
  std::mt19937_64 generator(3);
  std::uniform_int_distribution<std::int32_t> any_id(0, 4000);
  std::vector<Request> out;
  for (const std::size_t length : {1u, 63u, 65u, 150u}) {
    std::vector<std::int32_t> ids(length);
    for (auto& id : ids) id = any_id(generator);
    for (const float temperature : {0.0f, 0.8f}) {
      out.push_back(make_request(fmt::format("{}-{}", length, temperature), ids, kTokens));
      out.back().sampling.temperature = temperature;
      out.back().sampling.top_p = 0.95f;
    }
  }
  return out;
}

// Tokens and logit hashes of all requests, run by the first `ranks` ranks; equal on all.
// Collective.
std::vector<std::uint64_t> run_on(int ranks, const JobConfig& job) {
  const bool member = world().rank() < ranks;
  const HostComm group = world().split(member ? 0 : 1, world().rank());
  auto results = world().together([&] {
    std::vector<std::uint64_t> out;
    if (!member) return out;
    EngineHarness engine(group, job);
    for (const auto& record : engine.run(requests(), 3)) {
      out.insert(out.end(), record.completion_ids.begin(), record.completion_ids.end());
      out.insert(out.end(), record.logit_hashes.begin(), record.logit_hashes.end());
    }
    return out;
  });
  world().bcast(results);
  return results;
}

TEST_P(RankSplit, EveryNumberOfRanksGivesTheSameBits) {
  const SharedModel model(GetParam());
  for (const auto activations : {ActivationDType::kBf16, ActivationDType::kFp32}) {
    const auto alone = run_on(1, model.job(activations));
    ASSERT_EQ(alone.size(), 2 * kTokens * requests().size());
    for (int ranks = 2; ranks <= GetParam().max_ranks; ranks *= 2) {
      EXPECT_EQ(run_on(ranks, model.job(activations)), alone) << ranks << " ranks";
    }
  }
}

// All that does not divide is said at once, with what to do.
void expect_refusal(const ModelShape& shape, int ranks, const std::vector<std::string>& faults) {
  const SharedModel model(shape);
  try {
    run_on(ranks, model.job(ActivationDType::kBf16));
    ADD_FAILURE() << shape.name << " was accepted on " << ranks << " ranks";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfiguration);
    EXPECT_THAT(e.what(), HasSubstr("expected a number of tensor-parallel ranks that divides"));
    EXPECT_THAT(e.what(), HasSubstr("start another number of ranks"));
    for (const auto& fault : faults) EXPECT_THAT(e.what(), HasSubstr(fault));
  }
}

const ModelShape& shape_named(const std::string& name) {
  return *std::ranges::find(model_shapes(), name, &ModelShape::name);
}

TEST(RankSplitRefusal, NamesWhatDoesNotDivide) {
  expect_refusal(shape_named("one_attention_layer_without_mtp"), 4,
                 {"num_attention_heads 2 does not divide by 4 ranks"});
  expect_refusal(shape_named("one_linear_layer_odd_hidden"), 4,
                 {"linear_num_key_heads 2 does not divide by 4 ranks",
                  "linear_num_value_heads 2 does not divide by 4 ranks"});
  expect_refusal(
      shape_named("three_heads_divide_by_nothing"), 2,
      {"num_attention_heads 3", "linear_num_key_heads 3", "linear_num_value_heads 9",
       "intermediate_size 75", "num_key_value_heads 3 and 2 ranks: neither divides the other"});
}

INSTANTIATE_TEST_SUITE_P(Models, RankSplit, ::testing::ValuesIn(model_shapes()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace tandem::testing
