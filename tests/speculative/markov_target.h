// A target model small enough to be known exactly: a Markov chain over a few symbols whose draws
// are made by the production sampler, and rounds of drafts verified against it, rightly and
// wrongly.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/ops/sample.h"

namespace tandem::testing {

using Tokens = std::vector<std::int32_t>;

// softmax(logits / T), then top-k, top-p and min-p as ops/sample.h defines them, in double
// precision.
std::vector<double> exact_distribution(std::span<const float> logits, const ops::SampleParams& p);

class MarkovTarget {
 public:
  // params: temperature and filters; its key and position are set for each draw.
  MarkovTarget(int vocab, unsigned seed, const ops::SampleParams& params);

  int vocab() const { return vocab_; }
  // Final distribution of the token after `last`, in double precision.
  const std::vector<double>& distribution(std::int32_t last) const { return filtered_[at(last)]; }
  // The same without the filters.
  const std::vector<double>& unfiltered(std::int32_t last) const { return plain_[at(last)]; }
  const std::vector<float>& logits(std::int32_t last) const { return logits_[at(last)]; }
  // The sampler's token for `position` behind `last`.
  std::int32_t draw(std::int32_t last, std::uint32_t position, RngKey key) const;

  Tokens plain_decode(std::int32_t anchor, std::size_t length, RngKey key) const;
  // Probability of each sequence of `length` tokens behind `anchor`, index in base vocab.
  std::vector<double> joint_distribution(std::int32_t anchor, int length) const;

 private:
  static std::size_t at(std::int32_t id) { return static_cast<std::size_t>(id); }

  int vocab_;
  ops::SampleParams params_;
  std::vector<std::vector<float>> logits_;     // [last][id]
  std::vector<std::vector<double>> filtered_;  // [last][id]
  std::vector<std::vector<double>> plain_;     // [last][id]
  std::unique_ptr<Backend> backend_;
  mutable std::vector<std::byte> scratch_;
};

// Proposals for the positions behind `last`, which stands at `position`.
using DraftSource = std::function<Tokens(std::int32_t last, std::uint32_t position, RngKey key)>;
// Tokens that a round emits.
using Verify = std::function<Tokens(std::int32_t last, std::uint32_t position, RngKey key,
                                    const Tokens& drafts)>;

// The rule of ops/verify.h: every row draws, drafts that equal the draws before them are accepted.
// Number of leading drafts that it accepts, of rows that drew `sampled`.
int count_accepted(const Tokens& drafts, const Tokens& sampled);
Tokens verify_by_own_draw(const MarkovTarget& target, std::int32_t last, std::uint32_t position,
                          RngKey key, const Tokens& drafts);

// Rejection sampling for one-hot proposals as published, and what can go wrong in it.
enum class Defect {
  kNone,
  kAlwaysAccept,
  kUnfilteredTarget,   // acceptance compares with the distribution before the filters
  kRejectedCanReturn,  // the recovered token comes from p instead of p without the draft
  kNoRenormalization,  // the recovered token's distribution adds up to 1 - p(draft)
  kSharedNoise,        // one random number decides on the draft and on the recovered token
};
Tokens verify_by_rejection(const MarkovTarget& target, std::int32_t last, std::uint32_t position,
                           RngKey key, const Tokens& drafts, Defect defect);

// Rounds until `length` tokens are there; what exceeds it is cut off.
Tokens speculative_decode(std::int32_t anchor, std::size_t length, RngKey key,
                          const DraftSource& draft, const Verify& verify);

}  // namespace tandem::testing
