// The sampler on as many ranks as the test is started with, against the whole row on one: ties and
// maxima at the borders of shards, ids that belong to no token, NaN, and equal draws everywhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/hash.h"
#include "parallel/mpi_device_comm.h"
#include "sampling/sampler.h"
#include "tests/layers/layer_fixture.h"
#include "tests/support/mpi_test_main.h"

namespace tandem::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
using Rows = std::vector<std::vector<float>>;

class SamplerTest : public ::testing::Test {
 protected:
  // Each rank's part of whole rows; padding behind the vocabulary would win if it were looked at.
  static std::vector<float> part_of(const Rows& rows, const VocabShard& shard) {
    std::vector<float> part;
    for (const auto& row : rows) {
      const auto begin = row.begin() + shard.begin;
      part.insert(part.end(), begin, begin + shard.rows);
      part.insert(part.end(), static_cast<std::size_t>(shard.padded_rows - shard.rows), kInf);
    }
    return part;
  }

  Sampler make_sampler(const VocabShard& shard, std::int64_t valid_vocab, std::size_t max_rows) {
    return Sampler(memory_, *backend_, shard, world().size(), valid_vocab,
                   static_cast<int>(max_rows));
  }
  static VocabShard shard_of(const Rows& rows) {
    return make_vocab_shard(static_cast<std::int64_t>(rows[0].size()),
                            {world().rank(), world().size()});
  }

  std::vector<SampledToken> sample(const Rows& rows, std::int64_t valid_vocab,
                                   const std::vector<ops::SampleParams>& params,
                                   SampleOptions options = {}) {
    const VocabShard shard = shard_of(rows);
    Sampler sampler = make_sampler(shard, valid_vocab, rows.size());
    std::vector<SampledToken> out(rows.size());
    sampler.sample(context_, part_of(rows, shard).data(), params, options, out);
    return out;
  }
  std::vector<std::int32_t> argmax(const Rows& rows, std::int64_t valid_vocab) {
    const VocabShard shard = shard_of(rows);
    Sampler sampler = make_sampler(shard, valid_vocab, rows.size());
    const auto part = part_of(rows, shard);
    const int n = static_cast<int>(rows.size());
    const auto* best = sampler.enqueue_argmax(context_, part.data(), n);
    std::vector<std::int32_t> out;
    for (int row = 0; row < n; ++row) {
      out.push_back(ops::best_of_ranks(best, world().size(), n, row).id);
    }
    return out;
  }

  HeapAllocator memory_;
  std::unique_ptr<Backend> backend_ = make_backend(BackendKind::kCpu, {.num_threads = 1});
  std::unique_ptr<DeviceComm> comm_ = make_mpi_device_comm(world(), nullptr);
  Scratch scratch_;
  LayerContext context_{*backend_, *comm_, scratch_, DType::kF32};
};

Rows random_rows(std::size_t count, std::size_t vocab, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  Rows rows(count, std::vector<float>(vocab));
  for (auto& row : rows) {
    for (float& x : row) x = normal(generator);
  }
  return rows;
}

std::vector<std::int32_t> ids_of(const std::vector<SampledToken>& tokens) {
  std::vector<std::int32_t> ids;
  for (const auto& t : tokens) ids.push_back(t.id);
  return ids;
}

TEST_F(SamplerTest, FindsTheMaximumWhereverItIs) {
  constexpr std::size_t kVocab = 103;
  Rows rows = random_rows(kVocab, kVocab, 1);
  std::vector<std::int32_t> expected;
  for (std::size_t i = 0; i < kVocab; ++i) {
    rows[i][i] = 100;
    expected.push_back(static_cast<std::int32_t>(i));
  }
  EXPECT_EQ(argmax(rows, kVocab), expected);
  EXPECT_EQ(ids_of(sample(rows, kVocab, std::vector<ops::SampleParams>(kVocab))), expected);
}

TEST_F(SamplerTest, TiesGoToTheLowerIdAcrossShards) {
  constexpr std::size_t kVocab = 24;  // borders of 2, 3 and 4 shards: 6, 8, 12, 16, 18
  Rows rows;
  std::vector<std::int32_t> expected;
  for (std::size_t first = 0; first < kVocab; ++first) {
    for (std::size_t second = first + 1; second < kVocab; ++second) {
      rows.emplace_back(kVocab, 0.0f);
      rows.back()[first] = rows.back()[second] = 1.5f;
      expected.push_back(static_cast<std::int32_t>(first));
    }
  }
  rows.emplace_back(kVocab, 0.0f);
  expected.push_back(0);
  EXPECT_EQ(argmax(rows, kVocab), expected);
  // Gathered rows, as for log-probabilities, decide alike.
  const std::vector<ops::SampleParams> greedy(rows.size());
  EXPECT_EQ(ids_of(sample(rows, kVocab, greedy, {.logprobs = true})), expected);
}

TEST_F(SamplerTest, IdsWithoutATokenAreNeverChosen) {
  constexpr std::size_t kVocab = 50;
  for (const std::int64_t valid : {49, 40, 26, 25, 24, 10, 1}) {
    Rows rows = random_rows(40, kVocab, 2);
    for (auto& row : rows) {
      for (auto i = static_cast<std::size_t>(valid); i < kVocab; ++i) row[i] = 1000;
    }
    std::vector<std::int32_t> expected;
    for (const auto& row : rows) {
      const auto best = std::max_element(row.begin(), row.begin() + valid);
      expected.push_back(static_cast<std::int32_t>(best - row.begin()));
    }
    EXPECT_EQ(argmax(rows, valid), expected);
    std::vector<ops::SampleParams> hot(rows.size());
    for (std::size_t i = 0; i < hot.size(); ++i) {
      hot[i] = {.temperature = 50, .key = {.seed = i}, .position = 7};
    }
    for (const auto id : ids_of(sample(rows, valid, hot))) EXPECT_LT(id, valid);
  }
}

TEST_F(SamplerTest, NanAndInfinityDecideAlikeOnEveryPath) {
  constexpr std::size_t kVocab = 8;
  const Rows rows = {{kNan, kNan, kNan, kNan, kNan, kNan, kNan, kNan},
                     {kNan, kNan, kNan, kNan, kNan, -5, kNan, -4},
                     {1, 2, kNan, 2, kNan, 2, kNan, kNan},
                     {-kInf, -kInf, -kInf, -kInf, -kInf, -kInf, -kInf, -kInf},
                     {-kInf, -kInf, -kInf, -kInf, -kInf, -kInf, -1e38f, -kInf},
                     {kNan, 0, 0, 0, 0, kInf, kInf, 0}};
  const std::vector<std::int32_t> expected = {0, 7, 1, 0, 6, 5};
  EXPECT_EQ(argmax(rows, kVocab), expected);
  const std::vector<ops::SampleParams> greedy(rows.size());
  EXPECT_EQ(ids_of(sample(rows, kVocab, greedy)), expected);
  EXPECT_EQ(ids_of(sample(rows, kVocab, greedy, {.logit_hashes = true})), expected);
}

TEST_F(SamplerTest, MoreRanksThanIds) {
  EXPECT_EQ(argmax({{1, 3, 2}, {3, 3, 1}, {0, 1, 2}}, 3), (std::vector<std::int32_t>{1, 0, 2}));
  EXPECT_EQ(argmax({{1, 3}}, 1), (std::vector<std::int32_t>{0}));
}

// Greedy and sampled rows mixed, more than are gathered at once.
TEST_F(SamplerTest, DrawsAreThoseOfTheWholeRow) {
  constexpr std::size_t kVocab = 4099, kValid = 4096, kRows = 19;
  const Rows rows = random_rows(kRows, kVocab, 3);
  std::vector<ops::SampleParams> params(kRows);
  for (std::size_t i = 0; i < kRows; ++i) {
    params[i] = {.temperature = 0.5f * static_cast<float>(i % 3),
                 .top_p = i % 4 == 0 ? 0.9f : 1.0f,
                 .min_p = i % 5 == 0 ? 0.05f : 0.0f,
                 .top_k = i % 2 == 0 ? 40 : 0,
                 .key = {.seed = 11, .request = i},
                 .position = static_cast<std::uint32_t>(100 + i)};
  }
  const auto tokens = sample(rows, kValid, params, {.logprobs = true, .logit_hashes = true});
  std::vector<std::byte> scratch(ops::sample_scratch_bytes(*backend_, kVocab));
  for (std::size_t i = 0; i < kRows; ++i) {
    ops::SampleResult expected;
    ops::sample_rows(*backend_, {.logits = rows[i].data(),
                                 .stride = kVocab,
                                 .num_rows = 1,
                                 .valid_vocab = kValid,
                                 .params = &params[i],
                                 .want_logprob = true,
                                 .out = &expected,
                                 .scratch = scratch.data()});
    EXPECT_EQ(tokens[i].id, expected.id) << i;
    EXPECT_EQ(tokens[i].logprob, expected.logprob) << i;
    EXPECT_EQ(tokens[i].logit_hash, xxh3_64(rows[i].data(), kValid * sizeof(float))) << i;
    double sum = 0;
    for (std::size_t j = 0; j < kValid; ++j) sum += std::exp(double{rows[i][j]});
    EXPECT_NEAR(tokens[i].logprob, rows[i][static_cast<std::size_t>(tokens[i].id)] - std::log(sum),
                1e-4);
  }
}

// Wanting to know more about a token must not change it.
TEST_F(SamplerTest, OptionsChangeNoToken) {
  const Rows rows = random_rows(9, 300, 4);
  std::vector<ops::SampleParams> params(rows.size());
  for (const float temperature : {0.0f, 0.8f}) {
    for (auto& p : params) p.temperature = temperature;
    const auto plain = ids_of(sample(rows, 300, params));
    EXPECT_EQ(ids_of(sample(rows, 300, params, {.logprobs = true})), plain);
    EXPECT_EQ(ids_of(sample(rows, 300, params, {.logit_hashes = true})), plain);
  }
}

}  // namespace
}  // namespace tandem::testing
