// The acceptance rule and its counters, on targets small enough to be known exactly: what a round
// emits has the target's distribution whatever was drafted, equals plain decoding token for token,
// and the statistics used here do notice wrong rules.
#include "speculative/acceptance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/error.h"
#include "tests/speculative/goodness_of_fit.h"
#include "tests/speculative/markov_target.h"

namespace tandem::testing {
namespace {

using ::testing::ElementsAre;

TEST(CountAccepted, StopsAtTheFirstDifference) {
  const auto count = [](const Tokens& drafts, const Tokens& sampled) {
    return count_accepted(drafts, sampled);
  };
  EXPECT_EQ(count({}, {5}), 0);
  EXPECT_EQ(count({1, 2, 3}, {1, 2, 3, 4}), 3);
  EXPECT_EQ(count({1, 2, 3}, {9, 2, 3, 4}), 0);
  EXPECT_EQ(count({1, 2, 3}, {1, 9, 3, 4}), 1);  // equal again behind a rejection: worthless
  EXPECT_EQ(count({1, 2, 3}, {1, 2, 9, 3}), 2);
}

TEST(AcceptanceCounting, CountsByPosition) {
  AcceptanceCounter counter;
  counter.count_round(0, 0);  // nothing proposed: not a draft round
  EXPECT_EQ(counter.rounds(), 0);
  counter.count_round(3, 3);
  counter.count_round(3, 1);
  counter.count_round(2, 2);
  counter.count_round(4, 0);
  EXPECT_EQ(counter.rounds(), 4);
  EXPECT_EQ(counter.bonus_tokens(), 2);
  EXPECT_THAT(counter.proposed(), ElementsAre(4, 4, 3, 1));
  EXPECT_THAT(counter.accepted(), ElementsAre(3, 2, 1, 0));
  EXPECT_THROW(counter.count_round(2, 3), Error);
  EXPECT_THROW(counter.count_round(2, -1), Error);
}

// Three symbols, two drafts, all outcomes: the first two tokens have exactly the target's joint
// distribution, and draft 1 is accepted with probability p(draft 1).
TEST(AcceptanceRule, ExactForThreeSymbols) {
  // Rows with zeros and a certain one among them.
  const std::array<std::array<double, 3>, 3> p = {{{0.5, 0.2, 0.3}, {0, 1, 0}, {0.9, 0, 0.1}}};
  for (std::int32_t anchor = 0; anchor < 3; ++anchor) {
    for (std::int32_t d1 = 0; d1 < 3; ++d1) {
      for (std::int32_t d2 = 0; d2 < 3; ++d2) {
        std::array<std::array<double, 3>, 3> joint{};
        double accepted_first = 0;
        const Tokens drafts = {d1, d2};
        const std::int32_t before[] = {anchor, d1, d2};
        for (int outcome = 0; outcome < 27; ++outcome) {
          const Tokens y = {outcome % 3, outcome / 3 % 3, outcome / 9};
          double probability = 1;
          for (std::size_t i = 0; i < 3; ++i) {
            probability *= p[static_cast<std::size_t>(before[i])][static_cast<std::size_t>(y[i])];
          }
          const int accepted = count_accepted(drafts, y);
          const auto first = static_cast<std::size_t>(y[0]);
          if (accepted > 0) {
            accepted_first += probability;
            joint[first][static_cast<std::size_t>(y[1])] += probability;
          } else {  // the next round goes on behind y[0]
            for (std::size_t next = 0; next < 3; ++next) {
              joint[first][next] += probability * p[first][next];
            }
          }
        }
        const auto& start = p[static_cast<std::size_t>(anchor)];
        EXPECT_NEAR(accepted_first, start[static_cast<std::size_t>(d1)], 1e-15);
        for (std::size_t a = 0; a < 3; ++a) {
          for (std::size_t b = 0; b < 3; ++b) EXPECT_NEAR(joint[a][b], start[a] * p[a][b], 1e-15);
        }
      }
    }
  }
}

constexpr int kVocab = 12;
constexpr std::int32_t kAnchor = 3;
constexpr int kLength = 3;

struct Outcome {
  Fit fit;
  double accepted = 0;  // share of rounds whose first draft was accepted
};

// The first three tokens of many requests against their joint distribution.
Outcome three_tokens(const MarkovTarget& target, const DraftSource& draft, const Verify& verify,
                     int requests) {
  std::vector<std::int64_t> counts(kVocab * kVocab * kVocab, 0);
  double rounds = 0, accepted = 0;
  const Verify counting = [&](std::int32_t last, std::uint32_t position, RngKey key,
                              const Tokens& drafts) {
    Tokens out = verify(last, position, key, drafts);
    ++rounds;
    if (out.size() > 1) ++accepted;
    return out;
  };
  for (int i = 0; i < requests; ++i) {
    const RngKey key{.seed = 1, .request = 0x9e3779b97f4a7c15ull * static_cast<std::uint64_t>(i)};
    const Tokens t = speculative_decode(kAnchor, kLength, key, draft, counting);
    ++counts[static_cast<std::size_t>((t[0] * kVocab + t[1]) * kVocab + t[2])];
  }
  return {.fit = goodness_of_fit(counts, target.joint_distribution(kAnchor, kLength)),
          .accepted = accepted / rounds};
}

class SampledRounds : public ::testing::TestWithParam<ops::SampleParams> {
 protected:
  // Greedy drafts of a model that resembles the target: what MTP drafting is.
  Tokens greedy_drafts(std::int32_t last) const {
    Tokens drafts;
    for (int i = 0; i < 3; ++i) {
      std::vector<float> logits = target_.logits(last);
      const auto& noise = other_.logits(last);
      for (std::size_t j = 0; j < logits.size(); ++j) logits[j] += 0.5f * noise[j];
      last = static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) -
                                       logits.begin());
      drafts.push_back(last);
    }
    return drafts;
  }
  // Drafts drawn from the resembling model, with noise of their own.
  Tokens sampled_drafts(std::int32_t last, std::uint32_t position, RngKey key) const {
    Tokens drafts;
    for (std::uint32_t i = 0; i < 3; ++i) {
      const auto& logits = other_.logits(last);
      std::int32_t best = 0;
      float best_score = -INFINITY;
      for (std::int32_t id = 0; id < kVocab; ++id) {
        const float score = logits[static_cast<std::size_t>(id)] +
                            gumbel(random_bits(key, position + 1 + i, RngPurpose::kDraft,
                                               static_cast<std::uint32_t>(id)));
        if (score > best_score) best_score = score, best = id;
      }
      drafts.push_back(last = best);
    }
    return drafts;
  }

  DraftSource greedy_source() const {
    return [this](std::int32_t last, std::uint32_t, RngKey) { return greedy_drafts(last); };
  }

  MarkovTarget target_{kVocab, 21, GetParam()};
  MarkovTarget other_{kVocab, 22, GetParam()};
};

TEST_P(SampledRounds, OwnDrawKeepsTheDistribution) {
  const Verify rule = [&](std::int32_t last, std::uint32_t position, RngKey key,
                          const Tokens& drafts) {
    return verify_by_own_draw(target_, last, position, key, drafts);
  };
  const auto greedy = three_tokens(target_, greedy_source(), rule, 40000);
  EXPECT_TRUE(greedy.fit.agrees()) << greedy.fit;
  EXPECT_GT(greedy.accepted, 0.2);  // the drafter is neither useless nor perfect
  EXPECT_LT(greedy.accepted, 0.8);
  const auto sampled = three_tokens(
      target_,
      [&](std::int32_t last, std::uint32_t position, RngKey key) {
        return sampled_drafts(last, position, key);
      },
      rule, 40000);
  EXPECT_TRUE(sampled.fit.agrees()) << sampled.fit;
}

// The own draw accepts exactly as often as rejection sampling would: it gives nothing away.
TEST_P(SampledRounds, OwnDrawAcceptsAsOftenAsRejectionSampling) {
  const auto own = three_tokens(
      target_, greedy_source(),
      [&](std::int32_t last, std::uint32_t position, RngKey key, const Tokens& drafts) {
        return verify_by_own_draw(target_, last, position, key, drafts);
      },
      20000);
  const auto rejection = three_tokens(
      target_, greedy_source(),
      [&](std::int32_t last, std::uint32_t position, RngKey key, const Tokens& drafts) {
        return verify_by_rejection(target_, last, position, key, drafts, Defect::kNone);
      },
      20000);
  EXPECT_TRUE(rejection.fit.agrees()) << rejection.fit;
  EXPECT_NEAR(own.accepted, rejection.accepted, 0.015);
}

TEST_P(SampledRounds, WrongRulesAreNoticed) {
  for (const Defect defect :
       {Defect::kAlwaysAccept, Defect::kUnfilteredTarget, Defect::kRejectedCanReturn,
        Defect::kNoRenormalization, Defect::kSharedNoise}) {
    const bool filters = GetParam().top_k > 0 || GetParam().top_p < 1;
    if (defect == Defect::kUnfilteredTarget && !filters) continue;  // not a defect then
    const auto outcome = three_tokens(
        target_, greedy_source(),
        [&](std::int32_t last, std::uint32_t position, RngKey key, const Tokens& drafts) {
          return verify_by_rejection(target_, last, position, key, drafts, defect);
        },
        40000);
    EXPECT_FALSE(outcome.fit.agrees())
        << "defect " << static_cast<int>(defect) << ": " << outcome.fit;
  }
}

// A drafter that knows the future is right for exactly j drafts; j changes from round to round.
TEST_P(SampledRounds, OracleDraftsChangeRoundsButNoToken) {
  constexpr std::size_t kLong = 60;
  for (const float temperature : {0.0f, GetParam().temperature}) {
    ops::SampleParams params = GetParam();
    params.temperature = temperature;
    const MarkovTarget target(kVocab, 31, params);
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      const RngKey key{.seed = seed, .request = 77};
      const Tokens future = target.plain_decode(kAnchor, kLong + 8, key);
      for (int right = -1; right <= 4; ++right) {  // -1: another number each round
        AcceptanceCounter counter;
        int round = 0, expected = 0;
        const DraftSource oracle = [&](std::int32_t, std::uint32_t position, RngKey) {
          const int num_drafts = right < 0 ? round % 5 : 4;
          expected = right < 0 ? std::min(num_drafts, round % 3) : right;
          ++round;
          Tokens drafts(future.begin() + position, future.begin() + position + num_drafts);
          for (auto i = static_cast<std::size_t>(expected); i < drafts.size(); ++i) {
            drafts[i] = (drafts[i] + 1) % kVocab;
          }
          return drafts;
        };
        const Verify rule = [&](std::int32_t last, std::uint32_t position, RngKey k,
                                const Tokens& drafts) {
          const Tokens out = verify_by_own_draw(target, last, position, k, drafts);
          EXPECT_EQ(static_cast<int>(out.size()) - 1, expected);
          counter.count_round(static_cast<int>(drafts.size()), static_cast<int>(out.size()) - 1);
          return out;
        };
        EXPECT_EQ(speculative_decode(kAnchor, kLong, key, oracle, rule),
                  Tokens(future.begin(), future.begin() + kLong));
        if (right < 0) continue;
        EXPECT_EQ(counter.rounds(), round);
        EXPECT_EQ(counter.bonus_tokens(), right == 4 ? round : 0);
        for (int i = 0; i < 4; ++i) {
          EXPECT_EQ(counter.accepted()[static_cast<std::size_t>(i)], i < right ? round : 0);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Filters, SampledRounds,
    ::testing::Values(ops::SampleParams{.temperature = 1},
                      ops::SampleParams{.temperature = 0.8f, .top_p = 0.9f, .top_k = 8},
                      ops::SampleParams{.temperature = 1, .top_p = 0.8f, .min_p = 0.1f}));

}  // namespace
}  // namespace tandem::testing
