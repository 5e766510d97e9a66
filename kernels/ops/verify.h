// The bookkeeping of rounds over generated rows, on the device: what a slot carries from round to
// round, which rows a round has, which of them are accepted, what the drafter goes on with. So a
// round needs nothing from the host but its places, and the next one may follow before the host has
// read the record of this one. Integers only; tokens have been drawn by ops/sample.h.
//
// A round has num_places places of `rows` rows each: row i of place p is row p * rows + i of the
// pass. A place without a slot, or whose slot has ended, has no rows; what a slot leaves of its
// place is padding (batch_view.h).
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/ops/batch_view.h"
#include "kernels/ops/limits.h"
#include "kernels/ops/sample.h"

namespace tandem::ops {

inline constexpr std::int32_t kNoSlot = -1;
inline constexpr std::int32_t kSampled = -1;

// What a slot needs to go from round to round. The host writes it when a sequence joins.
struct RoundSlot {
  std::int32_t last_token = 0;  // the newest token; its row is the next round's first
  std::int32_t position = 0;    // of last_token
  std::int32_t limit_len = 0;   // tokens that prompt and completion may have together
  std::int32_t num_drafts = 0;  // below the rows of a place
  std::int32_t ended = 0;       // 1: limit or stop id reached; no rows any more
  std::int32_t stops = 0;       // 1: stop ids end the sequence
  // Recomputation: `drafts` are the true tokens behind last_token and this is the one behind them;
  // all rows are accepted. kSampled: what is behind last_token is for sampling to say.
  std::int32_t known_next = kSampled;
  SampleParams sampling{};               // but for the position
  std::int32_t drafts[kMaxRoundRows]{};  // [num_drafts] proposals behind last_token
};

// What a round did to a slot.
struct RoundRecord {
  std::int32_t slot = kNoSlot;  // kNoSlot: nothing, the place had no rows
  std::int32_t position = 0;    // of the first row
  std::int32_t num_drafts = 0;
  std::int32_t accepted = 0;         // leading drafts; accepted + 1 tokens come out of the round
  std::int32_t next_num_drafts = 0;  // proposals for the next round
  std::int32_t ended = 0;            // 1: there is no next round
  std::int32_t drafts[kMaxRoundRows]{};  // [num_drafts] as verified
  std::int32_t tokens[kMaxRoundRows]{};  // [accepted + 1]
  float logprobs[kMaxRoundRows]{};       // [accepted + 1] as sampled
};

struct RoundPlaces {
  int num_places = 0;
  int rows = 0;                         // of a place
  const std::int32_t* slots = nullptr;  // [num_places], kNoSlot: none; distinct otherwise
  RoundSlot* table = nullptr;           // [max_sequences]
};

// The round's rows: last token and drafts of every place, as many as fit, and the parameters of the
// draw that each row's successor takes (padding: greedy).
struct LayOutRoundArgs {
  RoundPlaces places;
  RowArrays out;                   // [num_places * rows], one segment a place
  SampleParams* params = nullptr;  // [num_places * rows] or nullptr
};
void lay_out_round(Backend& backend, const LayOutRoundArgs& args);

// Row i's token y_i is the true successor if the rows before it were true, so drafts are accepted
// while drafts[i] == y_i, and y_0 ... y_a come out (speculative/acceptance.h says why that is
// lossless). Moves the slots on by the accepted rows: last token, position, pending_rows, ended,
// and the number of drafts wanted next, at most *depth and none whose row could yield no token
// below the limit. Lays out what the drafter must see: the rows' tokens, now certain, each beside
// the hidden state of its place's row.
struct VerifyArgs {
  RoundPlaces places;
  // [num_places * rows]; nullptr if every slot's tokens are known.
  const SampleResult* sampled = nullptr;
  const std::int32_t* stop_ids = nullptr;  // [num_stop_ids]
  int num_stop_ids = 0;
  const std::int32_t* depth = nullptr;   // [1]
  std::int32_t* pending_rows = nullptr;  // [max_sequences]
  RoundRecord* records = nullptr;        // [num_places]
  // For the drafter; nullptr without one.
  RowArrays certain;                  // [num_places * rows], one segment a place
  std::int32_t* last_rows = nullptr;  // [num_places], of each place's newest certain token
};
void verify(Backend& backend, const VerifyArgs& args);

// Draft number `index` of every place that wants it: the largest logit over the ranks' shards, ties
// to the lower id. Lays out the drafter's next pass, one row a place that wants another.
struct ProposeArgs {
  RoundPlaces places;                  // rows are not looked at
  const ArgmaxResult* best = nullptr;  // [num_ranks, num_places], ranks in the order of their ids
  int num_ranks = 1;
  int index = 0;
  RowArrays next;  // [num_places], one segment a place
};
void propose(Backend& backend, const ProposeArgs& args);

}  // namespace tandem::ops
