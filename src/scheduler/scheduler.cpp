#include "scheduler/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace tandem {

Scheduler::Scheduler(const SchedulerLimits& limits)
    : limits_(limits),
      concurrency_(limits.max_sequences),
      cut_tokens_(limits.max_batched_tokens < kStateBlockTokens ? 1 : kStateBlockTokens),
      pool_(limits.num_pages),
      prefixes_(pool_, limits.page_tokens, limits.prefix_cache ? limits.num_snapshots : 0) {
  TANDEM_CHECK(limits.max_sequences >= 1 && limits.max_batched_tokens >= 1 &&
                   limits.max_context >= 1 && limits.num_pages >= 1,
               "{} sequences, {} batched tokens, context {}, {} pages", limits.max_sequences,
               limits.max_batched_tokens, limits.max_context, limits.num_pages);
  TANDEM_CHECK(limits.max_long_prefills >= 1, "{} long prefills", limits.max_long_prefills);
  TANDEM_CHECK(limits.draft_tokens >= 0 && limits.max_round_rows > limits.draft_tokens,
               "{} drafts in {} rows", limits.draft_tokens, limits.max_round_rows);
  const auto slots = static_cast<std::size_t>(limits.max_sequences);
  active_.reserve(slots);
  free_slots_.reserve(slots);
  for (int slot = limits.max_sequences - 1; slot >= 0; --slot) free_slots_.push_back(slot);
  plan_.resets.reserve(slots);
  plan_.chunks.reserve(slots);
  plan_.rounds.reserve(slots);
  plan_.preempted.reserve(slots);
}

std::optional<std::string> Scheduler::add(Sequence& seq) {
  TANDEM_CHECK(seq.state == SequenceState::kWaiting && seq.admission_order < 0 &&
                   seq.prompt_len >= 1 && seq.len() == seq.prompt_len,
               "sequence {} is not new", seq.index);
  if (seq.limit_len <= seq.prompt_len) {
    return fmt::format(
        "no room for a completion: the prompt has {} tokens, prompt and completion together may "
        "have {} (max_tokens {}, context {})",
        seq.prompt_len, std::max(seq.limit_len, 0), seq.request->sampling.max_tokens,
        limits_.max_context);
  }
  const int num_pages = pages_for_tokens(seq.limit_len, limits_.page_tokens);
  if (num_pages > limits_.num_pages) {
    return fmt::format(
        "needs {} KV pages ({} prompt tokens and up to {} more at {} tokens a page), the pool has "
        "{} ({} tokens): lower max_tokens or raise memory.kv",
        num_pages, seq.prompt_len, seq.limit_len - seq.prompt_len, limits_.page_tokens,
        limits_.num_pages, std::int64_t{limits_.num_pages} * limits_.page_tokens);
  }
  waiting_.push_back(&seq);
  return std::nullopt;
}

void Scheduler::set_concurrency(int n) {
  TANDEM_CHECK(n >= 1 && n <= limits_.max_sequences, "concurrency {} with {} slots", n,
               limits_.max_sequences);
  concurrency_ = n;
}

const StepPlan& Scheduler::plan_step(Admission admission) {
  plan_.resets.clear();
  plan_.chunks.clear();
  plan_.rounds.clear();
  plan_.preempted.clear();
  waits_for_pages_ = false;

  PromptBudget budget = prompt_budget(count_round_rows(), admission);
  // Oldest first: a sequence takes pages from younger ones only, so nothing planned is undone.
  for (std::size_t i = 0; i < active_.size(); ++i) {
    Sequence& seq = *active_[i];
    if (seq.state == SequenceState::kPrefilling) {
      plan_chunk(seq, budget);
    } else if (!plan_round(seq)) {
      TANDEM_CHECK(i > 0, "the oldest sequence {} has {} of {} pages and gets no more", seq.index,
                   seq.pages.size(), limits_.num_pages);
      preempt(seq);
    }
  }
  // Who was preempted in this step would be the first to come back, for nothing.
  if (admission == Admission::kOpen && plan_.preempted.empty()) admit_waiting(budget);

  plan_.num_prompt_rows = 0;
  for (const auto& chunk : plan_.chunks) plan_.num_prompt_rows += chunk.num_rows;
  plan_.num_round_rows = 0;
  for (const auto& entry : plan_.rounds) plan_.num_round_rows += entry.num_rows;
  TANDEM_CHECK(!plan_.empty() || idle() || (active_.empty() && admission == Admission::kClosed),
               "nothing to do for {} active and {} waiting sequences", num_active(), num_waiting());
  return plan_;
}

void Scheduler::finish(Sequence& seq) {
  if (seq.is_active()) {
    release(seq);
  } else {
    const auto place = std::ranges::find(waiting_, &seq);
    TANDEM_CHECK(place != waiting_.end(), "sequence {} is not here", seq.index);
    waiting_.erase(place);
  }
  seq.state = SequenceState::kFinished;
}

void Scheduler::check_integrity() const {
  pool_.check_integrity();
  prefixes_.check_integrity();

  std::vector<int> refs(static_cast<std::size_t>(pool_.num_pages()));
  std::vector<std::uint8_t> slot_used(static_cast<std::size_t>(limits_.max_sequences));
  int num_pending = 0;
  for (std::size_t i = 0; i < active_.size(); ++i) {
    const Sequence& seq = *active_[i];
    TANDEM_CHECK(i == 0 || active_[i - 1]->admission_order < seq.admission_order,
                 "sequence {} is out of order", seq.index);
    TANDEM_CHECK(seq.slot >= 0 && seq.slot < limits_.max_sequences, "slot {}", seq.slot);
    TANDEM_CHECK(!slot_used[static_cast<std::size_t>(seq.slot)], "slot {} is used twice", seq.slot);
    slot_used[static_cast<std::size_t>(seq.slot)] = 1;
    TANDEM_CHECK(
        seq.num_computed <= static_cast<int>(seq.pages.size()) * limits_.page_tokens &&
            seq.pages.size() <=
                static_cast<std::size_t>(pages_for_tokens(seq.limit_len, limits_.page_tokens)),
        "sequence {}: {} positions in {} pages", seq.index, seq.num_computed, seq.pages.size());
    TANDEM_CHECK((seq.state == SequenceState::kPrefilling) == (seq.num_computed < seq.prompt_len),
                 "sequence {} with {} of {} prompt tokens", seq.index, seq.num_computed,
                 seq.prompt_len);
    for (const auto page : seq.pages) ++refs[static_cast<std::size_t>(page)];
    if (seq.pending_snapshot != kNoSnapshot) ++num_pending;
  }
  TANDEM_CHECK(active_.size() + free_slots_.size() == slot_used.size(), "{} active, {} free slots",
               active_.size(), free_slots_.size());
  for (const auto slot : free_slots_) {
    TANDEM_CHECK(!slot_used[static_cast<std::size_t>(slot)], "slot {} is free and used", slot);
  }
  for (std::int32_t page = 0; page < pool_.num_pages(); ++page) {
    const int expected = refs[static_cast<std::size_t>(page)] + (pool_.is_cached(page) ? 1 : 0);
    TANDEM_CHECK(pool_.refs(page) == expected, "page {}: {} references, {} holders", page,
                 pool_.refs(page), expected);
  }
  TANDEM_CHECK(prefixes_.num_owned_snapshots() + num_pending + prefixes_.snapshots().num_free() ==
                   prefixes_.snapshots().num_snapshots(),
               "{} snapshots owned, {} pending, {} free of {}", prefixes_.num_owned_snapshots(),
               num_pending, prefixes_.snapshots().num_free(),
               prefixes_.snapshots().num_snapshots());
  for (const Sequence* seq : waiting_) {
    TANDEM_CHECK(seq->state == SequenceState::kWaiting && seq->slot < 0 && seq->pages.empty(),
                 "waiting sequence {} holds {} pages", seq->index, seq->pages.size());
  }
}

}  // namespace tandem
