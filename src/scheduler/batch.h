// What one engine step does, as the scheduler decided it. Order of execution: resets, then one
// forward pass over the chunks (prompt rows; may be empty), after which snapshots are saved, then
// one round over the rounds' entries (generated rows; may be empty).
#pragma once

#include <cstdint>
#include <vector>

#include "cache/snapshot_pool.h"
#include "scheduler/sequence.h"

namespace tandem {

// A slot changes hands: write its tables, and load or zero its recurrent state and windows.
struct SlotReset {
  Sequence* seq = nullptr;  // its slot and, after a hit, its first pages are set
  // Snapshot of the state at seq->num_computed, to be loaded before this step saves any other (its
  // id may be due for another use already); kNoSnapshot: zero state.
  std::int32_t restore_snapshot = kNoSnapshot;
};

// Prompt rows at positions start ... start + num_rows - 1.
struct PromptChunk {
  Sequence* seq = nullptr;
  int start = 0;
  int num_rows = 0;
  bool ends_prompt = false;                  // the last row is the last prompt token
  bool yields_token = false;                 // ... and its successor is not known yet: sample it
  std::int32_t save_snapshot = kNoSnapshot;  // id that gets the state after the last row

  int end() const { return start + num_rows; }
};

// Generated rows: position start holds the last token (or, forced, a known one), the rest drafts.
struct RoundEntry {
  Sequence* seq = nullptr;
  int start = 0;
  int num_rows = 0;
  // Recomputation after a preemption: all rows' tokens are known, nothing is sampled or verified.
  bool forced = false;
};

struct StepPlan {
  std::vector<SlotReset> resets;
  std::vector<PromptChunk> chunks;   // at most one a sequence
  std::vector<RoundEntry> rounds;    // one a running or recomputing sequence, oldest first
  std::vector<Sequence*> preempted;  // lost slot and pages when this step was planned
  int num_prompt_rows = 0;
  int num_round_rows = 0;

  bool empty() const { return chunks.empty() && rounds.empty(); }
};

}  // namespace tandem
