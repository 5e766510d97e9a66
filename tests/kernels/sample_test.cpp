#include "kernels/ops/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "tests/kernels/op_check.h"

namespace tandem::testing {
namespace {

using ops::SampleParams;
using ops::SampleResult;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

ops::ArgmaxResult argmax(const std::vector<float>& logits, std::int64_t begin, std::int64_t valid) {
  const auto backend = test_backend(1);
  const Vector<float> seen(logits.begin(), logits.end());
  Vector<ops::ArgmaxResult> result(1);
  ops::argmax_rows(*backend, {.logits = seen.data(),
                              .stride = static_cast<std::int64_t>(logits.size()),
                              .num_rows = 1,
                              .shard_begin = begin,
                              .shard_rows = static_cast<std::int64_t>(logits.size()),
                              .valid_vocab = valid,
                              .out = result.data()});
  return result[0];
}

TEST(Argmax, TiesGoToTheLowerIdAndNanLoses) {
  EXPECT_EQ(argmax({1, 3, 2, 3}, 100, 1000).id, 101);
  EXPECT_EQ(argmax({1, 3, 2, 3}, 100, 1000).value, 3);
  EXPECT_EQ(argmax({kNan, -5, kNan, -4}, 0, 1000).id, 3);
  EXPECT_EQ(argmax({kNan, -kInf, -kInf}, 0, 1000).id, 1);
  EXPECT_EQ(argmax({-0.0f, 0.0f}, 0, 1000).id, 0);
  EXPECT_EQ(argmax({0, 1, kInf, kInf}, 0, 1000).id, 2);
}

TEST(Argmax, SeesOnlyItsShardOfTheVocabulary) {
  EXPECT_EQ(argmax({1, 2, 9, 9}, 10, 12).id, 11);  // ids 12, 13 are padding
  for (const auto& [logits, valid] :
       {std::pair{std::vector<float>{1, 2}, 10}, std::pair{std::vector<float>{kNan, kNan}, 1000},
        std::pair{std::vector<float>{}, 1000}}) {
    EXPECT_EQ(argmax(logits, 10, valid).id, 10);
    EXPECT_EQ(argmax(logits, 10, valid).value, -kInf);
  }
}

TEST(Argmax, FindsTheMaximumAnywhere) {
  for (std::size_t n : {1u, 15u, 16u, 17u, 100u}) {
    for (std::size_t at = 0; at < n; ++at) {
      std::vector<float> logits(n, -2.0f);
      logits[at] = -1.0f;
      ASSERT_EQ(argmax(logits, 0, 1000).id, static_cast<std::int32_t>(at)) << n;
    }
  }
}

std::vector<SampleResult> sample(Backend& backend, const std::vector<float>& logits,
                                 std::int64_t vocab, const std::vector<SampleParams>& params,
                                 std::int64_t valid) {
  const Vector<float> seen(logits.begin(), logits.end());
  const Vector<SampleParams> seen_params(params.begin(), params.end());
  Vector<SampleResult> results(params.size());
  Vector<std::byte> scratch(ops::sample_scratch_bytes(backend, vocab) + 64, std::byte{0x5a});
  ops::sample_rows(backend, {.logits = seen.data(),
                             .stride = vocab,
                             .num_rows = static_cast<int>(params.size()),
                             .valid_vocab = valid,
                             .params = seen_params.data(),
                             .want_logprob = true,
                             .out = results.data(),
                             .scratch = scratch.data()});
  for (std::size_t i = scratch.size() - 64; i < scratch.size(); ++i) {
    EXPECT_EQ(scratch[i], std::byte{0x5a}) << "written behind the scratch memory";
  }
  return {results.begin(), results.end()};
}

std::int32_t sample_one(const std::vector<float>& logits, const SampleParams& params) {
  const auto vocab = static_cast<std::int64_t>(logits.size());
  return sample(*test_backend(1), logits, vocab, {params}, vocab)[0].id;
}

// Which ids a filter leaves, from many draws at a temperature that makes them all likely.
std::vector<std::int32_t> kept(const std::vector<float>& logits, SampleParams params) {
  const auto backend = test_backend(2);
  const auto vocab = static_cast<std::int64_t>(logits.size());
  constexpr std::size_t kDraws = 4000;
  std::vector<float> rows;
  std::vector<SampleParams> all;
  for (std::size_t i = 0; i < kDraws; ++i) {
    rows.insert(rows.end(), logits.begin(), logits.end());
    params.position = static_cast<std::uint32_t>(i);
    all.push_back(params);
  }
  std::vector<std::int32_t> ids;
  for (const SampleResult& r : sample(*backend, rows, vocab, all, vocab)) ids.push_back(r.id);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

using Ids = std::vector<std::int32_t>;

std::vector<float> log_of(std::vector<float> probabilities) {
  for (float& p : probabilities) p = std::log(p);
  return probabilities;
}

TEST(Sample, TopKBreaksTiesByTheLowerId) {
  EXPECT_EQ(kept({1, 2, 2, 2, 0}, {.temperature = 1, .top_k = 2}), (Ids{1, 2}));
  EXPECT_EQ(kept({1, 2, 2, 2, 0}, {.temperature = 1, .top_k = 4}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(kept({1, 2, 2, 2, 0}, {.temperature = 1, .top_k = 1}), (Ids{1}));
  EXPECT_EQ(kept({1, 2, 2, 2, 0}, {.temperature = 1, .top_k = 99}), (Ids{0, 1, 2, 3, 4}));
}

TEST(Sample, TopPKeepsTheSmallestSetThatReachesTheMass) {
  const auto logits = log_of({0.125f, 0.5f, 0.25f, 0.125f});  // exact in binary
  EXPECT_EQ(kept(logits, {.temperature = 1, .top_p = 0.49f}), (Ids{1}));
  EXPECT_EQ(kept(logits, {.temperature = 1, .top_p = 0.51f}), (Ids{1, 2}));
  EXPECT_EQ(kept(logits, {.temperature = 1, .top_p = 0.76f}), (Ids{0, 1, 2}));  // tie: lower id
  EXPECT_EQ(kept(logits, {.temperature = 1, .top_p = 0.9f}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(kept(logits, {.temperature = 1, .top_p = 1e-9f}), (Ids{1}));
  // The mass is that of what top-k left: of 0.5 and 0.25, the first is 2/3.
  EXPECT_EQ(kept(logits, {.temperature = 1, .top_p = 0.6f, .top_k = 2}), (Ids{1}));
  EXPECT_EQ(kept(logits, {.temperature = 1, .top_p = 0.7f, .top_k = 2}), (Ids{1, 2}));
}

// The prefix that top-p orders grows; equal weights make it grow to the end.
TEST(Sample, TopPOverAFlatVocabulary) {
  const std::vector<float> logits(5000, 0.25f);
  const auto ids = kept(logits, {.temperature = 1, .top_p = 0.0999f});
  EXPECT_LE(ids.back(), 499);  // 500 of 5000 reach it first, the lower ids of the tie
  EXPECT_GT(ids.size(), 480u);
  EXPECT_GT(kept(logits, {.temperature = 1, .top_p = 0.9999f}).back(), 4900);
}

TEST(Sample, MinPComparesWithTheLargest) {
  const auto logits = log_of({0.125f, 0.5f, 0.25f, 0.125f});
  EXPECT_EQ(kept(logits, {.temperature = 1, .min_p = 0.6f}), (Ids{1}));
  EXPECT_EQ(kept(logits, {.temperature = 1, .min_p = 0.45f}), (Ids{1, 2}));
  EXPECT_EQ(kept(logits, {.temperature = 1, .min_p = 0.2f}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(kept(logits, {.temperature = 1, .min_p = 1.0f}), (Ids{1}));
}

TEST(Sample, OddLogits) {
  EXPECT_EQ(sample_one({1, 5, 5, 2}, {.temperature = 0}), 1);
  EXPECT_EQ(sample_one({kNan, kNan}, {.temperature = 0}), 0);
  EXPECT_EQ(sample_one({kNan, kNan}, {.temperature = 1}), 0);
  EXPECT_EQ(sample_one({kNan, -kInf, -3, -kInf}, {.temperature = 1}), 2);
  EXPECT_EQ(sample_one({-kInf, -kInf}, {.temperature = 1}), 0);
  EXPECT_EQ(sample_one({0, kInf, 0}, {.temperature = 1}), 1);
  EXPECT_EQ(sample_one({0, 88, 3e38f, -3e38f}, {.temperature = 1e-30f}), 2);
  const auto backend = test_backend(1);  // ids from valid_vocab on do not exist
  EXPECT_EQ(sample(*backend, {0, 1, 9}, 3, {{.temperature = 0}}, 2)[0].id, 1);
}

TEST(Sample, LogprobIsThatOfTheUnfilteredSoftmax) {
  const auto backend = test_backend(1);
  const std::vector<float> logits = random_normal(1, 1000, 5.0f);
  double sum = 0;
  for (const float x : logits) sum += std::exp(double{x});
  for (const SampleParams& params :
       {SampleParams{}, SampleParams{.temperature = 0.3f, .top_p = 0.5f, .top_k = 3},
        SampleParams{.temperature = 5.0f}}) {
    const SampleResult r = sample(*backend, logits, 1000, {params}, 1000)[0];
    EXPECT_NEAR(r.logprob, logits[static_cast<std::size_t>(r.id)] - std::log(sum), 1e-5);
  }
}

// The final distribution, by brute force in double precision.
std::vector<double> exact_distribution(const std::vector<float>& logits, const SampleParams& p) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  if (p.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(p.top_k)));
  const auto weight = [&](std::size_t id) {
    return std::exp((double{logits[id]} - logits[order[0]]) / p.temperature);
  };
  double total = 0, mass = 0;
  for (const std::size_t id : order) total += weight(id);
  std::size_t count = 0;
  while (count < order.size() && mass < p.top_p * total) mass += weight(order[count++]);
  order.resize(p.top_p < 1 ? std::max<std::size_t>(1, count) : order.size());
  std::vector<double> probability(logits.size(), 0.0);
  double norm = 0;
  for (const std::size_t id : order) {
    if (weight(id) >= p.min_p) norm += probability[id] = weight(id);
  }
  for (double& x : probability) x /= norm;
  return probability;
}

TEST(Sample, DrawsFollowTheFilteredDistribution) {
  const auto backend = test_backend(2);
  constexpr std::size_t kVocab = 40, kRows = 2000, kCalls = 50;
  const std::vector<float> logits = random_normal(3, kVocab, 1.5f);
  std::vector<float> rows;
  for (std::size_t r = 0; r < kRows; ++r) rows.insert(rows.end(), logits.begin(), logits.end());
  for (const SampleParams& filter :
       {SampleParams{.temperature = 1}, SampleParams{.temperature = 0.6f, .top_k = 7},
        SampleParams{.temperature = 1.7f, .top_p = 0.8f},
        SampleParams{.temperature = 1, .min_p = 0.1f},
        SampleParams{.temperature = 0.9f, .top_p = 0.95f, .min_p = 0.05f, .top_k = 20}}) {
    const auto exact = exact_distribution(logits, filter);
    std::vector<double> counts(kVocab, 0.0);
    for (std::size_t call = 0; call < kCalls; ++call) {
      std::vector<SampleParams> params(kRows, filter);
      for (std::size_t r = 0; r < kRows; ++r) {
        params[r].key = {.seed = 5, .request = call};
        params[r].position = static_cast<std::uint32_t>(r);
      }
      for (const SampleResult& s : sample(*backend, rows, kVocab, params, kVocab)) {
        ASSERT_GT(exact[static_cast<std::size_t>(s.id)], 0.0) << "id " << s.id << " was filtered";
        ++counts[static_cast<std::size_t>(s.id)];
      }
    }
    double distance = 0, noise = 0;
    constexpr double kDraws = double{kRows} * kCalls;
    for (std::size_t i = 0; i < kVocab; ++i) {
      distance += 0.5 * std::abs(counts[i] / kDraws - exact[i]);
      noise += 0.5 * std::sqrt(exact[i] * (1 - exact[i]) / kDraws);
    }
    // `noise` bounds the expected distance of a correct sampler; 1.5 of it is far outside its
    // spread.
    EXPECT_LT(distance, 1.5 * noise) << "top_k " << filter.top_k << ", top_p " << filter.top_p;
  }
}

TEST(Sample, RowsDoNotDependOnTheirBatchOrTheMachine) {
  constexpr std::size_t kVocab = 300;
  const std::vector<float> pool = random_normal(4, 12 * kVocab, 2.0f);
  const auto op = [&](Backend& backend, const std::vector<int>& rows) {
    std::vector<float> logits;
    std::vector<SampleParams> params;
    for (const int r : rows) {
      logits.insert(logits.end(), pool.begin() + r * int{kVocab},
                    pool.begin() + (r + 1) * int{kVocab});
      params.push_back({.temperature = 0.25f * static_cast<float>(r % 4),
                        .top_p = r % 3 == 0 ? 0.9f : 1.0f,
                        .top_k = r % 2 == 0 ? 0 : 20,
                        .key = {.seed = 9, .request = static_cast<std::uint64_t>(r)},
                        .position = static_cast<std::uint32_t>(r * 7)});
    }
    std::vector<float> out;
    for (const SampleResult& s : sample(backend, logits, kVocab, params, kVocab)) {
      out.push_back(static_cast<float>(s.id));
      out.push_back(s.logprob);
    }
    return out;
  };
  const auto backend = test_backend(3);
  EXPECT_EQ(batch_dependence(12, [&](const std::vector<int>& rows) { return op(*backend, rows); }),
            "");
  EXPECT_EQ(machine_dependence([&](Backend& b) {
              return op(b, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
            }),
            "");
}

TEST(Sample, SeedRequestAndPositionEachChangeTheDraw) {
  const std::vector<float> logits(1000, 0.0f);
  const SampleParams base{.temperature = 1, .key = {.seed = 1, .request = 2}, .position = 3};
  SampleParams seed = base, request = base, position = base;
  seed.key.seed = 4;
  request.key.request = 4;
  position.position = 4;
  const std::int32_t id = sample_one(logits, base);
  EXPECT_EQ(sample_one(logits, base), id);
  EXPECT_NE(sample_one(logits, seed), id);
  EXPECT_NE(sample_one(logits, request), id);
  EXPECT_NE(sample_one(logits, position), id);
}

}  // namespace
}  // namespace tandem::testing
