// Continuous batching: which prompt rows and which rounds run in the next step, who gets slots and
// pages, who is preempted. Host only, no clock, no randomness, no model: every rank runs it on the
// same calls and takes the same decisions. Sampling, verification and ends of sequences are the
// engine's.
//
// Why it never deadlocks: pages are handed out in order of age; who lacks some takes them from the
// prefix index, then from the youngest; the oldest sequence can therefore always have all it needs,
// since add() refuses what exceeds the pool. Age survives preemption, so each becomes the oldest.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "cache/page_pool.h"
#include "cache/prefix_index.h"
#include "scheduler/batch.h"
#include "scheduler/sequence.h"

namespace tandem {

struct SchedulerLimits {
  int max_sequences = 8;  // slots
  // Rows of a step: rounds first, prompts get what is left, but never less than one state block.
  // Below kStateBlockTokens prompt chunks may end anywhere (the recurrent layers keep the block
  // open); otherwise they end on multiples of it.
  int max_batched_tokens = 2048;
  int max_context = 0;
  int max_long_prefills = 1;
  int long_prefill_tokens = 8192;  // longer prompts, counted without what the cache gave, are long
  int page_tokens = 16;
  int num_pages = 0;
  int draft_tokens = 0;    // k: most drafts verified in a round
  int max_round_rows = 1;  // >= k + 1; rows a slot recomputes in one forced round
  int num_snapshots = 0;   // 0: no prefix reuse
  bool prefix_cache = true;
};

enum class Admission { kOpen, kClosed };

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits);

  // Puts the sequence at the end of the waiting queue; it must outlive its stay here. Returns the
  // reason, with the numbers, if it can never fit: it is then not queued.
  [[nodiscard]] std::optional<std::string> add(Sequence& seq);
  // At most n admitted sequences from now on (1 ... max_sequences); nobody is preempted for it.
  void set_concurrency(int n);

  // Plans the next step; valid until the next call. Never empty while anything is admitted, or
  // waits and admission is open. Each chunk and entry must be reported below before the next plan,
  // unless its sequence is cancelled.
  const StepPlan& plan_step(Admission admission);

  // The chunk's rows are computed, its snapshot is saved. The first token (yields_token) may be
  // appended before or after, but before the next plan.
  void complete_chunk(const PromptChunk& chunk);
  // accepted_rows: rows that stay (all of a forced entry); as many tokens must have been appended
  // before the next plan.
  void complete_round(const RoundEntry& entry, int accepted_rows);

  // The entry that a running or recomputing sequence would get in a plan made now.
  RoundEntry round_entry(Sequence& seq) const;
  // Whether all that could be done behind the round under way is the same sequences' next one: then
  // that round may be launched before this one is reported. Pages for both are owned by then,
  // without anybody being preempted.
  bool reserve_following_round();

  // Takes the sequence out and frees what it holds, in any state but kFinished. A chunk or entry
  // planned for it counts as reported.
  void finish(Sequence& seq);
  void cancel(Sequence& seq) { finish(seq); }

  // For cold runs: forgets all prefixes.
  void clear_prefix_cache() { prefixes_.clear(); }

  bool idle() const { return active_.empty() && waiting_.empty(); }
  int num_active() const { return static_cast<int>(active_.size()); }  // hold a slot
  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  std::int64_t num_preemptions() const { return num_preemptions_; }
  const SchedulerLimits& limits() const { return limits_; }
  const PagePool& pages() const { return pool_; }
  const PrefixIndex& prefixes() const { return prefixes_; }

  // Throws Error{kInternal} unless sequences, slots, page references and snapshots agree.
  void check_integrity() const;

 private:
  // Prompt rows that this step can still take.
  struct PromptBudget {
    int rows = 0;
    int long_rows = 0;  // of these, for long prompts

    int rows_for(bool long_prompt) const { return long_prompt ? std::min(rows, long_rows) : rows; }
    void take(int n, bool long_prompt) {
      rows -= n;
      if (long_prompt) long_rows -= n;
    }
  };

  // prefill_queue.cpp: prompts in progress, and admission.
  PromptBudget prompt_budget(int round_rows, Admission admission) const;
  int waiting_short_rows(int enough) const;
  int num_admissible() const;
  bool is_long(const Sequence& seq, int num_computed) const;
  int num_long_prefills() const;
  int last_boundary(const Sequence& seq) const;
  bool is_saved_by_this_step(const Sequence& seq, int len) const;
  bool wants_snapshot(const Sequence& seq, int len) const;
  int chunk_end(const Sequence& seq, int start, int max_end) const;
  int affordable_end(const Sequence& seq) const;
  bool plan_chunk(Sequence& seq, PromptBudget& budget);
  void choose_snapshot(PromptChunk& chunk);
  void admit_waiting(PromptBudget& budget);
  bool has_pages_for(const Sequence& seq, const PrefixMatch& match) const;
  void admit(Sequence& seq, const PrefixMatch& match);

  // decode_queue.cpp: rounds.
  int count_round_rows() const;
  bool plan_round(Sequence& seq);

  // preemption.cpp: who owns pages and slots.
  int pages_to_own(const Sequence& seq, int end) const;
  bool reserve_pages(Sequence& seq, int num_pages);
  bool reserve_spare_pages(Sequence& seq, int num_pages);
  bool preempt_younger_than(const Sequence& seq);
  void preempt(Sequence& seq);
  void release(Sequence& seq);

  SchedulerLimits limits_;
  int concurrency_;
  int cut_tokens_;  // prompt chunks end on multiples of it
  PagePool pool_;
  PrefixIndex prefixes_;
  std::deque<Sequence*> waiting_;         // preempted ones by age, then new ones as they came
  std::vector<Sequence*> active_;         // by age, oldest first
  std::vector<std::int32_t> free_slots_;  // descending: the lowest is taken first
  bool waits_for_pages_ = false;          // the first of waiting_, for more than there were since
  StepPlan plan_;
  std::int64_t num_admissions_ = 0;
  std::int64_t num_preemptions_ = 0;
};

}  // namespace tandem
