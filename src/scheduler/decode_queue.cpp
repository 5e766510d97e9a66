// Rounds: the generated rows of every sequence whose prompt is done.
#include <algorithm>

#include "base/error.h"
#include "scheduler/scheduler.h"

namespace tandem {

RoundEntry Scheduler::round_entry(Sequence& seq) const {
  const int num_known = seq.len() - 1 - seq.num_computed;
  if (seq.state == SequenceState::kRecomputing) {
    return {.seq = &seq,
            .start = seq.num_computed,
            .num_rows = std::min(limits_.max_round_rows, num_known),
            .forced = true};
  }
  TANDEM_CHECK(num_known == 0 && seq.len() < seq.limit_len,
               "sequence {}: {} of {} tokens computed, limit {}", seq.index, seq.num_computed,
               seq.len(), seq.limit_len);
  // The row at position p yields the token at p + 1, and limit_len - 1 is the last one wanted.
  const int num_drafts =
      std::min({seq.num_drafts, limits_.draft_tokens, seq.limit_len - 1 - seq.len()});
  return {.seq = &seq, .start = seq.num_computed, .num_rows = 1 + num_drafts, .forced = false};
}

int Scheduler::count_round_rows() const {
  int num_rows = 0;
  for (Sequence* seq : active_) {
    if (seq->state != SequenceState::kPrefilling) num_rows += round_entry(*seq).num_rows;
  }
  return num_rows;
}

bool Scheduler::plan_round(Sequence& seq) {
  const RoundEntry entry = round_entry(seq);
  if (!reserve_pages(seq, pages_to_own(seq, entry.start + entry.num_rows))) return false;
  plan_.rounds.push_back(entry);
  return true;
}

bool Scheduler::reserve_following_round() {
  // Running sequences take no pages but those that were counted as theirs: who waits for pages does
  // so until one ends.
  if (!waiting_.empty() && num_active() < concurrency_ && !waits_for_pages_) return false;
  if (!std::ranges::all_of(
          active_, [](const Sequence* seq) { return seq->state == SequenceState::kRunning; })) {
    return false;
  }
  // However many rows of the round under way are accepted.
  const int most_rows = 2 * (1 + limits_.draft_tokens);
  return std::ranges::all_of(active_, [&](Sequence* seq) {
    return reserve_spare_pages(*seq, pages_to_own(*seq, seq->num_computed + most_rows));
  });
}

void Scheduler::complete_round(const RoundEntry& entry, int accepted_rows) {
  Sequence& seq = *entry.seq;
  TANDEM_CHECK(
      seq.num_computed == entry.start &&
          seq.state == (entry.forced ? SequenceState::kRecomputing : SequenceState::kRunning),
      "sequence {} at {}: round at {}", seq.index, seq.num_computed, entry.start);
  TANDEM_CHECK(
      accepted_rows >= (entry.forced ? entry.num_rows : 1) && accepted_rows <= entry.num_rows,
      "sequence {}: {} of {} rows", seq.index, accepted_rows, entry.num_rows);
  seq.num_computed += accepted_rows;
  if (entry.forced && seq.num_computed == seq.len() - 1) seq.state = SequenceState::kRunning;
}

}  // namespace tandem
