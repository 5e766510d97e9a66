#include "tests/speculative/markov_target.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/error.h"
#include "kernels/ops/verify.h"

namespace tandem::testing {
namespace {

double uniform(RngKey key, std::uint32_t position, RngPurpose purpose) {
  return double{uniform01(random_bits(key, position, purpose, 0))};
}

// The id where the running sum passes u; the last one if it never does.
std::int32_t inverse_cdf(const std::vector<double>& weights, double u) {
  std::size_t i = 0;
  for (double sum = weights[0]; i + 1 < weights.size() && u >= sum; sum += weights[i]) ++i;
  return static_cast<std::int32_t>(i);
}

}  // namespace

std::vector<double> exact_distribution(std::span<const float> logits, const ops::SampleParams& p) {
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return logits[i]; });
  std::vector<double> out(logits.size(), 0.0);
  if (p.temperature == 0) {
    out[order[0]] = 1;
    return out;
  }
  if (p.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(p.top_k)));
  const auto weight = [&](std::size_t i) {
    return std::exp((double{logits[i]} - double{logits[order[0]]}) / double{p.temperature});
  };
  double total = 0, mass = 0, kept = 0;
  for (const auto i : order) total += weight(i);
  for (const auto i : order) {
    if (mass >= double{p.top_p} * total && p.top_p < 1) break;
    mass += weight(i);
    if (weight(i) >= double{p.min_p}) kept += out[i] = weight(i);
  }
  for (double& x : out) x /= kept;
  return out;
}

MarkovTarget::MarkovTarget(int vocab, unsigned seed, const ops::SampleParams& params)
    : vocab_(vocab),
      params_(params),
      backend_(make_backend(BackendKind::kCpu, {.num_threads = 1})) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 1.5f);
  ops::SampleParams no_filter;
  no_filter.temperature = params.temperature;
  for (int last = 0; last < vocab; ++last) {
    std::vector<float> row(static_cast<std::size_t>(vocab));
    for (float& x : row) x = normal(generator);
    filtered_.push_back(exact_distribution(row, params));
    plain_.push_back(exact_distribution(row, no_filter));
    logits_.push_back(std::move(row));
  }
  scratch_.resize(ops::sample_scratch_bytes(*backend_, vocab));
}

std::int32_t MarkovTarget::draw(std::int32_t last, std::uint32_t position, RngKey key) const {
  ops::SampleParams params = params_;
  params.key = key;
  params.position = position;
  ops::SampleResult result;
  ops::sample_rows(*backend_, {.logits = logits_[at(last)].data(),
                               .stride = vocab_,
                               .num_rows = 1,
                               .valid_vocab = vocab_,
                               .params = &params,
                               .out = &result,
                               .scratch = scratch_.data()});
  return result.id;
}

Tokens MarkovTarget::plain_decode(std::int32_t anchor, std::size_t length, RngKey key) const {
  Tokens out;
  for (std::int32_t last = anchor; out.size() < length; last = out.back()) {
    out.push_back(draw(last, static_cast<std::uint32_t>(out.size() + 1), key));
  }
  return out;
}

std::vector<double> MarkovTarget::joint_distribution(std::int32_t anchor, int length) const {
  const auto v = static_cast<std::size_t>(vocab_);
  std::vector<double> joint = distribution(anchor);
  for (int i = 1; i < length; ++i) {
    std::vector<double> longer;
    for (std::size_t prefix = 0; prefix < joint.size(); ++prefix) {
      for (const double p : filtered_[prefix % v]) longer.push_back(joint[prefix] * p);
    }
    joint = std::move(longer);
  }
  return joint;
}

int count_accepted(const Tokens& drafts, const Tokens& sampled) {
  static const auto backend = make_backend(BackendKind::kCpu, {.num_threads = 1});
  TANDEM_CHECK(drafts.size() + 1 == sampled.size());
  ops::RoundSlot slot;
  slot.limit_len = 1 << 20;
  slot.num_drafts = static_cast<std::int32_t>(drafts.size());
  std::ranges::copy(drafts, slot.drafts);
  std::vector<ops::SampleResult> results;
  for (const auto id : sampled) results.push_back({.id = id});
  const std::int32_t place = 0, depth = 0;
  std::int32_t pending = 0;
  ops::RoundRecord record;
  ops::VerifyArgs args;
  args.places = {
      .num_places = 1, .rows = static_cast<int>(sampled.size()), .slots = &place, .table = &slot};
  args.sampled = results.data();
  args.depth = &depth;
  args.pending_rows = &pending;
  args.records = &record;
  ops::verify(*backend, args);
  return record.accepted;
}

Tokens verify_by_own_draw(const MarkovTarget& target, std::int32_t last, std::uint32_t position,
                          RngKey key, const Tokens& drafts) {
  Tokens sampled = {target.draw(last, position + 1, key)};
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    sampled.push_back(target.draw(drafts[i], position + 2 + static_cast<std::uint32_t>(i), key));
  }
  sampled.resize(static_cast<std::size_t>(count_accepted(drafts, sampled)) + 1);
  return sampled;
}

Tokens verify_by_rejection(const MarkovTarget& target, std::int32_t last, std::uint32_t position,
                           RngKey key, const Tokens& drafts, Defect defect) {
  Tokens out;
  for (const std::int32_t draft : drafts) {
    ++position;
    const auto d = static_cast<std::size_t>(draft);
    std::vector<double> p = target.distribution(last);
    double accept = p[d];
    if (defect == Defect::kAlwaysAccept) accept = 1;
    if (defect == Defect::kUnfilteredTarget) accept = target.unfiltered(last)[d];
    const double u = uniform(key, position, RngPurpose::kAccept);
    if (u < accept) {
      out.push_back(draft);
      last = draft;
      continue;
    }
    if (defect != Defect::kRejectedCanReturn) p[d] = 0;
    if (defect != Defect::kNoRenormalization) {
      const double rest = std::accumulate(p.begin(), p.end(), 0.0);
      for (double& x : p) x /= rest;
    }
    out.push_back(inverse_cdf(
        p, defect == Defect::kSharedNoise ? u : uniform(key, position, RngPurpose::kSample)));
    return out;
  }
  out.push_back(
      inverse_cdf(target.distribution(last), uniform(key, position + 1, RngPurpose::kSample)));
  return out;
}

Tokens speculative_decode(std::int32_t anchor, std::size_t length, RngKey key,
                          const DraftSource& draft, const Verify& verify) {
  Tokens out;
  std::int32_t last = anchor;
  while (out.size() < length) {
    const auto position = static_cast<std::uint32_t>(out.size());
    const Tokens emitted = verify(last, position, key, draft(last, position, key));
    out.insert(out.end(), emitted.begin(), emitted.end());
    last = out.back();
  }
  out.resize(length);
  return out;
}

}  // namespace tandem::testing
