// How many tokens to draft, from what was measured: the depth that gives the most tokens a second.
//
// With s_i the share of rounds whose first i drafts were all accepted, a round at depth d emits
// E(d) = 1 + s_1 + ... + s_d tokens on average (Leviathan et al. 2023, section 3.1, without its
// independence assumption) and takes c(d) seconds; the depth with the largest E(d) / c(d) wins.
// Both are running averages at the load of the day: s from the verifier's counts, c as a straight
// line through the mean times of shallow and deep rounds. Every so often one round drafts at full
// depth, so that the averages of depths not in use stay alive.
//
// Used on rank 0, whose clock decides; the choice travels with the step message. It may change when
// a token is made, never which.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem {

class AdaptiveDepth {
 public:
  explicit AdaptiveDepth(int max_depth);

  // Depth for the next round's drafts, 0 to max_depth.
  int choose();
  // One sequence's verified drafts.
  void count_round(int proposed, int accepted);
  // Wall time of a round whose sequences verified `mean_drafts` drafts on average and then drafted.
  void count_time(double mean_drafts, double seconds);

 private:
  struct Average {
    double weight = 0;
    double sum = 0;
    void add(double value);
    double mean(double prior) const { return weight == 0 ? prior : sum / weight; }
  };

  double expected_tokens(int depth) const;
  double cost(int depth) const;

  int max_depth_;
  std::vector<Average>
      survival_;  // [max_depth] share of rounds that accepted draft i and all before
  std::vector<Average> seconds_;  // [max_depth + 1] by rounded depth
  std::int64_t rounds_ = 0;       // timed
};

}  // namespace tandem
