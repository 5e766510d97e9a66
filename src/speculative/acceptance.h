// Counting what verification (kernels/ops/verify.h) decided, and why its rule is lossless.
//
// Row i of a round is given the true tokens up to draft i and yields y_i, the token that plain
// decoding would emit there: the argmax, or argmax(logit / T + Gumbel noise) over the filtered
// distribution with noise keyed by (seed, request, position, token) alone. Draft i+1 is accepted
// while it equals y_i; the round emits y_0 ... y_a. So speculation changes which rows are computed
// together and never what is emitted: greedy and sampled outputs equal plain decoding's token for
// token.
//
// For a drafter that proposes one token with certainty (a greedy draft, q one-hot) this *is*
// rejection sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023): draft d is accepted
// with probability P(y = d) = p(d) = min(1, p(d) / q(d)), and given a rejection y has distribution
// p restricted to tokens other than d, which is norm(max(p - q, 0)). The usual second draw is saved
// and the two draws are coupled, which leaves both distributions as they are.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem {

// Events of one request, counted where they happen.
class AcceptanceCounter {
 public:
  // A verified round: how many drafts were proposed and how many of them were accepted. A round
  // without drafts is not a draft round.
  void count_round(int proposed, int accepted);

  std::int64_t rounds() const { return rounds_; }
  std::int64_t bonus_tokens() const { return bonus_tokens_; }  // after wholly accepted drafts
  const std::vector<std::int64_t>& proposed() const { return proposed_; }  // [draft position]
  const std::vector<std::int64_t>& accepted() const { return accepted_; }  // [draft position]

 private:
  std::int64_t rounds_ = 0;
  std::int64_t bonus_tokens_ = 0;
  std::vector<std::int64_t> proposed_;
  std::vector<std::int64_t> accepted_;
};

}  // namespace tandem
