// The chooser of draft depths against simulated rounds whose best depth is known.
#include "speculative/adaptive_depth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "base/error.h"

namespace tandem::testing {
namespace {

// Rounds whose drafts are accepted one after the other with probability `acceptance` each, and that
// take `base_s` seconds and `per_draft_s` for each draft.
struct Simulation {
  double acceptance = 0;
  double base_s = 1;
  double per_draft_s = 0;
  std::mt19937 generator{7};

  void round(AdaptiveDepth& chooser, int depth) {
    std::bernoulli_distribution accept(acceptance);
    int accepted = 0;
    while (accepted < depth && accept(generator)) ++accepted;
    chooser.count_round(depth, accepted);
    chooser.count_time(depth, base_s + per_draft_s * depth);
  }
  // Rounds at the chooser's own depth; returns how often each was chosen in the last 320.
  std::map<int, int> run(AdaptiveDepth& chooser, int rounds) {
    std::map<int, int> chosen;
    for (int i = 0; i < rounds; ++i) {
      const int depth = chooser.choose();
      if (i >= rounds - 320) ++chosen[depth];
      round(chooser, depth);
    }
    return chosen;
  }
  double tokens_per_second(int depth) const {
    double tokens = 1;
    for (int i = 1; i <= depth; ++i) tokens += std::pow(acceptance, i);
    return tokens / (base_s + per_draft_s * depth);
  }
};

int most_chosen(const std::map<int, int>& chosen) {
  return std::ranges::max_element(chosen, {}, [](const auto& c) { return c.second; })->first;
}

TEST(AdaptiveDepth, FindsADepthAsFastAsTheBest) {
  constexpr int kMax = 6;
  for (const double acceptance : {0.05, 0.3, 0.6, 0.9}) {
    for (const double per_draft_s : {0.0, 0.02, 0.15, 0.6}) {
      Simulation simulation{.acceptance = acceptance, .per_draft_s = per_draft_s};
      AdaptiveDepth chooser(kMax);
      const int depth = most_chosen(simulation.run(chooser, 2000));
      double best = 0;
      for (int d = 0; d <= kMax; ++d) best = std::max(best, simulation.tokens_per_second(d));
      EXPECT_GT(simulation.tokens_per_second(depth), 0.97 * best)
          << "depth " << depth << " at acceptance " << acceptance << ", " << per_draft_s;
    }
  }
}

TEST(AdaptiveDepth, TurnsWithTheText) {
  AdaptiveDepth chooser(5);
  Simulation simulation{.acceptance = 0.95, .per_draft_s = 0.2};
  EXPECT_GE(most_chosen(simulation.run(chooser, 1000)), 4);
  simulation.acceptance = 0.02;
  EXPECT_EQ(most_chosen(simulation.run(chooser, 12000)), 0);
  // Full depth is tried now and then, so that better days are noticed.
  simulation.acceptance = 0.95;
  EXPECT_GE(most_chosen(simulation.run(chooser, 12000)), 4);
}

// A long prompt passes many steps before the first round: they are no trials.
TEST(AdaptiveDepth, StepsWithoutARoundAreNoTrials) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    AdaptiveDepth chooser(5);
    for (int step = 0; step < 500; ++step) chooser.choose();
    // Good drafts that cost more than they give: full depth alone would never show it.
    Simulation simulation{.acceptance = 0.9, .per_draft_s = 1};
    simulation.generator.seed(seed);
    EXPECT_EQ(most_chosen(simulation.run(chooser, 1000)), 0) << "seed " << seed;
  }
}

TEST(AdaptiveDepth, StaysInRange) {
  for (const int max_depth : {1, 2, 7}) {
    AdaptiveDepth chooser(max_depth);
    Simulation simulation{.acceptance = 0.5, .per_draft_s = 0.1};
    for (const auto& [depth, times] : simulation.run(chooser, 320)) {
      EXPECT_GE(depth, 0);
      EXPECT_LE(depth, max_depth);
    }
    EXPECT_THROW(chooser.count_round(1, 2), Error);
  }
  EXPECT_THROW(AdaptiveDepth(0), Error);
}

}  // namespace
}  // namespace tandem::testing
