// Executes step plans on a model that is nothing but a hash, and checks what a real model would
// silently get wrong. The state of a sequence after a position is a hash of all tokens up to it and
// of the class (prompt or generated) of every row; "KV" of a position is the state after it. So a
// page, slot or snapshot with the wrong content, made from other tokens, or by the other class of
// rows, cannot go unnoticed. The next token is a function of the state: what a sequence generates
// depends on its prompt alone, whatever the scheduler does.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "scheduler/scheduler.h"

namespace tandem {

inline constexpr std::int32_t kFakeVocab = 500;
inline constexpr std::int32_t kFakeEos = 0;

// The tokens of the request without any scheduling: prompt, then generated up to its limit or EOS.
std::vector<std::int32_t> fake_reference(const Request& request, int max_context);

class FakeEngine {
 public:
  FakeEngine(const SchedulerLimits& limits, std::uint32_t seed);

  // Runs one step and reports it. Failures throw std::logic_error with a message that names
  // sequence and position. Returns the sequences that have ended; they are finished already.
  std::vector<Sequence*> run_step(Scheduler& scheduler, const StepPlan& plan);

  // A digest of all plans so far, ids of slots, pages and snapshots included.
  std::uint64_t plan_digest() const { return digest_; }
  int num_restores() const { return num_restores_; }
  int num_rejected_drafts() const { return num_rejected_drafts_; }
  int num_forced_rows() const { return num_forced_rows_; }

 private:
  struct State {
    std::uint64_t hash = 0;
    int len = -1;  // positions folded in; -1: never written
  };

  void check_plan(const StepPlan& plan) const;
  void digest_plan(const StepPlan& plan);
  const std::vector<std::uint64_t>& true_states(const Sequence& seq);
  void check_attended(const Sequence& seq, int end);
  void write(const Sequence& seq, int position, std::uint64_t value);
  void run_chunk(const PromptChunk& chunk);
  int run_round(const RoundEntry& entry);
  void propose(Sequence& seq);
  bool has_ended(const Sequence& seq) const;

  SchedulerLimits limits_;
  std::mt19937 random_;
  std::vector<std::uint64_t> kv_;                  // [num_pages, page_tokens]
  std::vector<State> slots_;                       // [max_sequences]
  std::vector<std::vector<std::int32_t>> drafts_;  // [max_sequences][num_drafts]
  std::vector<State> snapshots_;                   // [num_snapshots]
  // What the state after each position of a sequence must be, by index of the sequence.
  std::map<int, std::vector<std::uint64_t>> true_states_;
  std::uint64_t digest_ = 0;
  int num_restores_ = 0;
  int num_rejected_drafts_ = 0;
  int num_forced_rows_ = 0;
};

}  // namespace tandem
