// Pages and slots of admitted sequences, and how they are taken back. A preempted sequence keeps
// its tokens and is computed again: the prompt as prompt rows (or from the prefix index), what was
// generated as generated rows, so that every row is the same again, bit for bit.
#include <algorithm>

#include "base/error.h"
#include "scheduler/scheduler.h"

namespace tandem {

// Pages a sequence owns before rows up to `end` (exclusive) run and may generate: theirs, and those
// of the next token and the drafter's steps behind them, which are not known to the host when they
// are written.
int Scheduler::pages_to_own(const Sequence& seq, int end) const {
  return pages_for_tokens(std::min(end + limits_.draft_tokens + 1, seq.limit_len),
                          limits_.page_tokens);
}

bool Scheduler::reserve_pages(Sequence& seq, int num_pages) {
  while (!reserve_spare_pages(seq, num_pages)) {
    if (!preempt_younger_than(seq)) return false;
  }
  return true;
}

bool Scheduler::reserve_spare_pages(Sequence& seq, int num_pages) {
  const int num_missing = num_pages - static_cast<int>(seq.pages.size());
  if (pool_.num_free() < num_missing && !prefixes_.evict_until_free(num_missing)) return false;
  for (int i = 0; i < num_missing; ++i) seq.pages.push_back(pool_.allocate());
  return true;
}

bool Scheduler::preempt_younger_than(const Sequence& seq) {
  Sequence& youngest = *active_.back();
  if (youngest.admission_order <= seq.admission_order) return false;
  preempt(youngest);
  return true;
}

void Scheduler::preempt(Sequence& seq) {
  release(seq);
  seq.state = SequenceState::kWaiting;
  seq.num_computed = 0;
  seq.num_drafts = 0;
  ++seq.num_preemptions;
  ++num_preemptions_;
  // Before all that were never admitted, among its like by age.
  const auto place = std::ranges::find_if(waiting_, [&](const Sequence* other) {
    return other->admission_order < 0 || other->admission_order > seq.admission_order;
  });
  waiting_.insert(place, &seq);
  plan_.preempted.push_back(&seq);
}

void Scheduler::release(Sequence& seq) {
  waits_for_pages_ = false;
  // Last page first: the next to allocate gets them in ascending order again.
  for (auto page = seq.pages.rbegin(); page != seq.pages.rend(); ++page) pool_.release(*page);
  seq.pages.clear();
  if (seq.pending_snapshot != kNoSnapshot) prefixes_.discard_snapshot(seq.pending_snapshot);
  seq.pending_snapshot = kNoSnapshot;
  free_slots_.insert(std::ranges::upper_bound(free_slots_, seq.slot, std::ranges::greater{}),
                     seq.slot);
  seq.slot = -1;
  active_.erase(std::ranges::find(active_, &seq));
}

}  // namespace tandem
