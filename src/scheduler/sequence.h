// A request in flight: its tokens, how far they are computed, and the pages and slot it holds.
// Tokens and the number of drafts are the engine's, everything else is written by the scheduler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "prompts/request.h"

namespace tandem {

enum class SequenceState {
  kWaiting,      // no slot, no pages
  kPrefilling,   // prompt rows to compute
  kRecomputing,  // after a preemption: prompt done, generated rows with known tokens to compute
  kRunning,      // one token a round and more
  kFinished,
};

struct Sequence {
  const Request* request = nullptr;  // borrowed
  int index = 0;                     // place in the batch file; unique
  int prompt_len = 0;
  int limit_len = 0;                 // tokens.size() never exceeds it
  std::vector<std::int32_t> tokens;  // [prompt_len + generated]
  int num_drafts = 0;  // proposals for the positions after tokens, verified in the next round

  SequenceState state = SequenceState::kWaiting;
  int num_computed = 0;  // positions whose KV and state exist; tokens.size() - 1 while kRunning
  std::int32_t slot = -1;
  std::vector<std::int32_t> pages;  // page of position p: pages[p / page_tokens]

  int cached_prompt_tokens = 0;  // prefix hit of the first admission
  int num_preemptions = 0;
  std::int64_t admission_order = -1;  // age; kept over preemptions

  // The scheduler's notes about snapshots.
  int branch_len = 0;    // a known prefix of this length has no snapshot: worth one; 0 = none
  int snapshot_len = 0;  // where this sequence's latest snapshot was taken or restored
  std::int32_t pending_snapshot = -1;  // reserved for the chunk in flight

  int len() const { return static_cast<int>(tokens.size()); }
  int num_generated() const { return len() - prompt_len; }
  bool is_active() const { return slot >= 0; }
};

inline Sequence make_sequence(const Request& request, int index, int max_context) {
  Sequence seq;
  seq.request = &request;
  seq.index = index;
  seq.tokens = request.prompt_ids;
  seq.prompt_len = seq.len();
  seq.limit_len = static_cast<int>(std::min<std::int64_t>(
      std::int64_t{seq.prompt_len} + request.sampling.max_tokens, max_context));
  return seq;
}

}  // namespace tandem
