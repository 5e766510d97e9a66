#include "speculative/acceptance.h"

#include "base/error.h"

namespace tandem {

void AcceptanceCounter::count_round(int proposed, int accepted) {
  TANDEM_CHECK(0 <= accepted && accepted <= proposed, "{} of {}", accepted, proposed);
  if (proposed == 0) return;
  ++rounds_;
  if (accepted == proposed) ++bonus_tokens_;
  const auto depth = static_cast<std::size_t>(proposed);
  if (proposed_.size() < depth) {
    proposed_.resize(depth);
    accepted_.resize(depth);
  }
  // A draft behind a rejected one was proposed as well, and was never accepted.
  for (std::size_t i = 0; i < depth; ++i) {
    ++proposed_[i];
    if (static_cast<int>(i) < accepted) ++accepted_[i];
  }
}

}  // namespace tandem
