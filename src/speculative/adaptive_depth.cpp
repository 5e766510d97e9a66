#include "speculative/adaptive_depth.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace tandem {
namespace {

// Averages forget with a half-life of about 140 events: content and load change during a night.
constexpr double kDecay = 0.995;
// Rounds at full depth before anything is known, and one in so many afterwards.
constexpr std::int64_t kTrialRounds = 8;
constexpr std::int64_t kExplorePeriod = 32;

}  // namespace

AdaptiveDepth::AdaptiveDepth(int max_depth)
    : max_depth_(max_depth),
      survival_(static_cast<std::size_t>(max_depth)),
      seconds_(static_cast<std::size_t>(max_depth) + 1) {
  TANDEM_CHECK(max_depth >= 1);
}

void AdaptiveDepth::Average::add(double value) {
  weight = weight * kDecay + 1;
  sum = sum * kDecay + value;
}

void AdaptiveDepth::count_round(int proposed, int accepted) {
  TANDEM_CHECK(0 <= accepted && accepted <= proposed && proposed <= max_depth_);
  for (int i = 0; i < proposed; ++i) {
    survival_[static_cast<std::size_t>(i)].add(accepted > i ? 1.0 : 0.0);
  }
}

void AdaptiveDepth::count_time(double mean_drafts, double seconds) {
  const auto depth = std::clamp<long>(std::lround(mean_drafts), 0, max_depth_);
  seconds_[static_cast<std::size_t>(depth)].add(seconds);
  ++rounds_;
}

double AdaptiveDepth::expected_tokens(int depth) const {
  double tokens = 1;
  double survival = 1;
  for (int i = 0; i < depth; ++i) {
    // A deeper position survives at most as often as the one before it.
    survival = std::min(survival, survival_[static_cast<std::size_t>(i)].mean(survival));
    tokens += survival;
  }
  return tokens;
}

// Weighted least squares through the mean times by depth; a constant while only one depth is known.
double AdaptiveDepth::cost(int depth) const {
  double w = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (int d = 0; d <= max_depth_; ++d) {
    const auto& average = seconds_[static_cast<std::size_t>(d)];
    const double weight = average.weight;
    w += weight;
    x += weight * d;
    y += average.sum;
    xx += weight * d * d;
    xy += average.sum * d;
  }
  const double determinant = w * xx - x * x;
  if (determinant <= 1e-9 * w * w) return w == 0 ? 1.0 : y / w;
  const double slope = std::max(0.0, (w * xy - x * y) / determinant);
  const double intercept = (y - slope * x) / w;
  return std::max(1e-9, intercept + slope * depth);
}

int AdaptiveDepth::choose() {
  // Measured rounds, not calls: the steps of a long prompt choose as well and measure nothing.
  if (rounds_ < kTrialRounds) return max_depth_;
  if (rounds_ < 2 * kTrialRounds) return static_cast<int>(rounds_ % 2) * (max_depth_ / 2);
  if (rounds_ % kExplorePeriod == 0) return max_depth_;
  int best = 0;
  double best_rate = 0;
  for (int depth = 0; depth <= max_depth_; ++depth) {
    const double rate = expected_tokens(depth) / cost(depth);
    if (rate > best_rate) {
      best = depth;
      best_rate = rate;
    }
  }
  return best;
}

}  // namespace tandem
