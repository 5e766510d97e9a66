// Prompts: how the rows of a pass are shared out, where chunks end, who is admitted.
#include <algorithm>

#include "base/error.h"
#include "scheduler/scheduler.h"

namespace tandem {
namespace {

// Besides the places chosen for their use (branch, last block), a long prompt leaves a snapshot
// about every so many tokens while some are free: what a later prompt shares with it is unknown.
constexpr int kSnapshotSpacingTokens = 1024;

constexpr int align_down(int n, int unit) { return n / unit * unit; }

}  // namespace

bool Scheduler::is_long(const Sequence& seq, int num_computed) const {
  return seq.prompt_len - num_computed > limits_.long_prefill_tokens;
}

int Scheduler::num_long_prefills() const {
  return static_cast<int>(std::ranges::count_if(
      active_, [&](const Sequence* seq) { return is_long(*seq, seq->num_computed); }));
}

int Scheduler::num_admissible() const {
  return std::min(concurrency_, limits_.max_sequences) - num_active();
}

// Rows that short prompts in the queue could use now; an estimate, since hits are not known.
int Scheduler::waiting_short_rows(int enough) const {
  int num_left = num_admissible();
  int rows = 0;
  for (const Sequence* seq : waiting_) {
    if (num_left <= 0 || rows >= enough) break;
    if (is_long(*seq, 0)) continue;
    rows += seq->prompt_len;
    --num_left;
  }
  return rows;
}

// Long prompts get what the short ones leave, but at least half: the short ones need not wait
// behind tens of thousands of rows, the long ones are not starved.
Scheduler::PromptBudget Scheduler::prompt_budget(int round_rows, Admission admission) const {
  const int floor = std::min(kStateBlockTokens, limits_.max_batched_tokens);
  const int rows = std::max(limits_.max_batched_tokens - round_rows, floor);
  const int half = align_down(rows / 2, cut_tokens_);
  std::int64_t short_rows = 0;
  for (const Sequence* seq : active_) {
    if (!is_long(*seq, seq->num_computed)) {
      short_rows += std::max(0, seq->prompt_len - seq->num_computed);
    }
  }
  if (admission == Admission::kOpen && short_rows < half) short_rows += waiting_short_rows(half);
  return {.rows = rows,
          .long_rows = rows - static_cast<int>(std::min<std::int64_t>(short_rows, half))};
}

// The end of the last block that a later, equal prompt could take over: its last token has to be
// computed in any case, since its logits are wanted.
int Scheduler::last_boundary(const Sequence& seq) const {
  return align_down(seq.prompt_len - 1, prefixes_.block_tokens());
}

// Equal prompts that prefill side by side need one snapshot, not one each.
bool Scheduler::is_saved_by_this_step(const Sequence& seq, int len) const {
  return std::ranges::any_of(plan_.chunks, [&](const PromptChunk& chunk) {
    return chunk.save_snapshot != kNoSnapshot && chunk.end() == len &&
           std::equal(seq.tokens.begin(), seq.tokens.begin() + len, chunk.seq->tokens.begin());
  });
}

bool Scheduler::wants_snapshot(const Sequence& seq, int len) const {
  return prefixes_.enabled() && !prefixes_.has_snapshot(seq.tokens, len) &&
         !is_saved_by_this_step(seq, len);
}

// Where a chunk that may reach max_end ends: at the prompt's end, where a snapshot is due, or on
// the last multiple of a state block; `start` if there is no such place.
int Scheduler::chunk_end(const Sequence& seq, int start, int max_end) const {
  for (const int len : {seq.branch_len, last_boundary(seq)}) {
    if (len > start && len <= max_end && wants_snapshot(seq, len) &&
        prefixes_.can_reserve_snapshot()) {
      return len;
    }
  }
  if (max_end >= seq.prompt_len) return seq.prompt_len;
  return std::max(start, align_down(max_end, cut_tokens_));
}

// How far the prompt could be computed with its pages and those that need no preemption.
int Scheduler::affordable_end(const Sequence& seq) const {
  const int num_pages = static_cast<int>(seq.pages.size()) + pool_.num_free() + pool_.num_idle();
  if (num_pages >= pages_to_own(seq, seq.prompt_len)) return seq.prompt_len;
  return static_cast<int>(
      std::min(std::int64_t{num_pages} * limits_.page_tokens, std::int64_t{seq.prompt_len} - 1));
}

bool Scheduler::plan_chunk(Sequence& seq, PromptBudget& budget) {
  const int start = seq.num_computed;
  const bool long_prompt = is_long(seq, start);
  const int max_end = start + budget.rows_for(long_prompt);
  if (chunk_end(seq, start, max_end) == start) return false;

  // A shorter chunk is better than a preemption; a preemption is better than no chunk.
  int end = chunk_end(seq, start, std::min(max_end, affordable_end(seq)));
  while (end == start) {
    if (!preempt_younger_than(seq)) return false;
    end = chunk_end(seq, start, std::min(max_end, affordable_end(seq)));
  }
  const bool ends_prompt = end == seq.prompt_len;
  const int num_pages =
      ends_prompt ? pages_to_own(seq, end) : pages_for_tokens(end, limits_.page_tokens);
  TANDEM_CHECK(reserve_pages(seq, num_pages), "sequence {}: {} pages", seq.index, num_pages);

  PromptChunk chunk{.seq = &seq,
                    .start = start,
                    .num_rows = end - start,
                    .ends_prompt = ends_prompt,
                    .yields_token = ends_prompt && seq.num_generated() == 0};
  choose_snapshot(chunk);
  plan_.chunks.push_back(chunk);
  budget.take(chunk.num_rows, long_prompt);
  return true;
}

void Scheduler::choose_snapshot(PromptChunk& chunk) {
  Sequence& seq = *chunk.seq;
  const int len = chunk.end();
  const bool is_due = len == seq.branch_len || len == last_boundary(seq);
  if (len % prefixes_.block_tokens() != 0 ||
      (!is_due && len - seq.snapshot_len < kSnapshotSpacingTokens) || !wants_snapshot(seq, len)) {
    return;
  }
  TANDEM_CHECK(seq.pending_snapshot == kNoSnapshot, "the last chunk of sequence {} is unreported",
               seq.index);
  chunk.save_snapshot = prefixes_.reserve_snapshot(is_due ? SnapshotEviction::kAllowed
                                                          : SnapshotEviction::kForbidden);
  seq.pending_snapshot = chunk.save_snapshot;
}

void Scheduler::admit_waiting(PromptBudget& budget) {
  for (std::size_t i = 0; i < waiting_.size() && num_admissible() > 0 && budget.rows > 0;) {
    Sequence& seq = *waiting_[i];
    const PrefixMatch match = prefixes_.match(seq.tokens, seq.prompt_len - 1);
    seq.branch_len = match.matched_tokens > match.hit_tokens ? match.matched_tokens : 0;
    const int start = match.hit_tokens;
    const bool long_prompt = is_long(seq, start);
    const bool has_rows = chunk_end(seq, start, start + budget.rows_for(long_prompt)) > start;
    if (long_prompt && (!has_rows || num_long_prefills() >= limits_.max_long_prefills)) {
      ++i;  // Shorter prompts may overtake it; it stays the first of the long ones.
      continue;
    }
    // Nobody overtakes for lack of pages: large requests would wait for ever.
    if (!has_rows) return;
    if (!has_pages_for(seq, match)) {
      waits_for_pages_ = true;
      return;
    }
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
    admit(seq, match);
    TANDEM_CHECK(plan_chunk(seq, budget), "sequence {} is admitted for nothing", seq.index);
  }
}

// Enough for the whole prompt (and what was generated before a preemption), for what the other
// prompts still lack, and for one more round of everybody: with less, the newcomer would soon be
// preempted, or others would, and their rows computed twice.
bool Scheduler::has_pages_for(const Sequence& seq, const PrefixMatch& match) const {
  if (active_.empty()) return true;  // all pages are free or idle, and add() saw that they suffice
  std::int64_t num_lacking = 0;
  for (const Sequence* other : active_) {
    const int next_end = other->state == SequenceState::kRunning
                             ? other->len() + 2 * limits_.draft_tokens + 1
                             : other->len();
    num_lacking +=
        std::max(0, pages_to_own(*other, next_end) - static_cast<int>(other->pages.size()));
  }
  const int num_new = pages_to_own(seq, seq.len()) - match.hit_tokens / limits_.page_tokens;
  return num_new + num_lacking <= pool_.num_free() + pool_.num_idle() - match.num_idle_pages;
}

void Scheduler::admit(Sequence& seq, const PrefixMatch& match) {
  // No allocation while it runs: these are the largest sizes.
  seq.tokens.reserve(static_cast<std::size_t>(seq.limit_len));
  seq.pages.reserve(static_cast<std::size_t>(pages_for_tokens(seq.limit_len, limits_.page_tokens)));

  prefixes_.acquire(seq.tokens, match, seq.pages);
  seq.num_computed = match.hit_tokens;
  seq.snapshot_len = match.hit_tokens;
  if (seq.admission_order < 0) {
    seq.admission_order = num_admissions_++;
    seq.cached_prompt_tokens = match.hit_tokens;
  }
  seq.state = SequenceState::kPrefilling;
  seq.slot = free_slots_.back();
  free_slots_.pop_back();
  active_.insert(std::ranges::upper_bound(active_, seq.admission_order, {},
                                          [](const Sequence* s) { return s->admission_order; }),
                 &seq);
  plan_.resets.push_back({.seq = &seq, .restore_snapshot = match.snapshot});
}

void Scheduler::complete_chunk(const PromptChunk& chunk) {
  Sequence& seq = *chunk.seq;
  TANDEM_CHECK(seq.state == SequenceState::kPrefilling && seq.num_computed == chunk.start &&
                   seq.pending_snapshot == chunk.save_snapshot,
               "sequence {} at {}: chunk at {}", seq.index, seq.num_computed, chunk.start);
  seq.num_computed = chunk.end();
  if (prefixes_.enabled()) {
    prefixes_.publish(seq.tokens, align_down(chunk.end(), prefixes_.block_tokens()), seq.pages,
                      chunk.save_snapshot);
  }
  if (chunk.save_snapshot != kNoSnapshot) seq.snapshot_len = chunk.end();
  seq.pending_snapshot = kNoSnapshot;
  if (chunk.ends_prompt) {
    seq.state =
        seq.num_computed < seq.len() - 1 ? SequenceState::kRecomputing : SequenceState::kRunning;
  }
}

}  // namespace tandem
