// One place of the operators of ops/verify.h, for host and device alike: a rule that decides which
// tokens come out is written once. Constexpr, so that device code may call it.
#pragma once

#include "kernels/ops/verify.h"

namespace tandem::ops {

constexpr void lay_out_padding(const RowArrays& to, int row, std::int32_t slot) {
  to.token_ids[row] = 0;
  to.positions[row] = kNoPosition;
  to.row_slots[row] = slot;
}

constexpr bool place_has_rows(const RoundPlaces& places, int place) {
  return places.slots[place] != kNoSlot && places.table[places.slots[place]].ended == 0;
}

constexpr void lay_out_place(const LayOutRoundArgs& a, int place) {
  const int first_row = place * a.places.rows;
  const bool used = place_has_rows(a.places, place);
  const std::int32_t slot = used ? a.places.slots[place] : 0;
  const RoundSlot& s = a.places.table[slot];
  int num_rows = used ? 1 + s.num_drafts : 0;
  if (num_rows > a.places.rows) num_rows = a.places.rows;
  a.out.segments[place] = {.slot = slot,
                           .first_row = first_row,
                           .num_rows = num_rows,
                           .start_position = used ? s.position : 0,
                           .ends_prompt = 0};
  for (int i = 0; i < a.places.rows; ++i) {
    const int row = first_row + i;
    if (i < num_rows) {
      a.out.token_ids[row] = i == 0 ? s.last_token : s.drafts[i - 1];
      a.out.positions[row] = s.position + i;
      a.out.row_slots[row] = slot;
    } else {
      lay_out_padding(a.out, row, slot);
    }
    if (a.params == nullptr) continue;
    SampleParams params;
    if (i < num_rows) params = s.sampling;
    params.position = static_cast<std::uint32_t>(s.position + i + 1);
    a.params[row] = params;
  }
}

constexpr bool is_stop_id(const VerifyArgs& a, std::int32_t token) {
  for (int i = 0; i < a.num_stop_ids; ++i) {
    if (a.stop_ids[i] == token) return true;
  }
  return false;
}

// Drafts that a slot wants behind its newest token: the row of the last useful one is that of
// position limit_len - 2, which yields the last token.
constexpr std::int32_t drafts_wanted(const RoundSlot& s, std::int32_t depth) {
  const std::int32_t useful = s.limit_len - 2 - s.position;
  const std::int32_t wanted = depth < useful ? depth : useful;
  return wanted > 0 ? wanted : 0;
}

constexpr void verify_place(const VerifyArgs& a, int place) {
  const int first_row = place * a.places.rows;
  const bool drafter = a.last_rows != nullptr;
  RoundRecord& record = a.records[place];
  if (!place_has_rows(a.places, place)) {
    record.slot = kNoSlot;
    if (!drafter) return;
    a.last_rows[place] = first_row;
    a.certain.segments[place] = {.slot = 0, .first_row = first_row};
    for (int i = 0; i < a.places.rows; ++i) lay_out_padding(a.certain, first_row + i, 0);
    return;
  }
  const std::int32_t slot = a.places.slots[place];
  RoundSlot& s = a.places.table[slot];
  const bool known = s.known_next != kSampled;
  int accepted = 0;
  while (accepted < s.num_drafts &&
         (known || s.drafts[accepted] == a.sampled[first_row + accepted].id)) {
    ++accepted;
  }
  record.slot = slot;
  record.position = s.position;
  record.num_drafts = s.num_drafts;
  record.accepted = accepted;
  bool ended = false;
  for (int i = 0; i < s.num_drafts; ++i) record.drafts[i] = s.drafts[i];
  for (int i = 0; i <= accepted; ++i) {
    const std::int32_t behind = known ? s.known_next : a.sampled[first_row + accepted].id;
    const std::int32_t token = i < accepted ? s.drafts[i] : behind;
    record.tokens[i] = token;
    record.logprobs[i] = known ? 0.0f : a.sampled[first_row + i].logprob;
    ended = ended || (!known && s.stops != 0 && is_stop_id(a, token));
  }
  const std::int32_t first_certain = s.position + 1;
  s.last_token = record.tokens[accepted];
  s.position += accepted + 1;
  s.known_next = kSampled;
  s.ended = ended || s.position + 1 >= s.limit_len ? 1 : 0;
  s.num_drafts = s.ended != 0 ? 0 : drafts_wanted(s, *a.depth);
  record.next_num_drafts = s.num_drafts;
  record.ended = s.ended;
  a.pending_rows[slot] = accepted + 1;
  if (!drafter) return;
  const int certain = s.ended != 0 ? 0 : accepted + 1;
  a.last_rows[place] = first_row + (certain > 0 ? certain - 1 : 0);
  a.certain.segments[place] = {.slot = slot,
                               .first_row = first_row,
                               .num_rows = certain,
                               .start_position = first_certain,
                               .ends_prompt = 0};
  for (int i = 0; i < a.places.rows; ++i) {
    const int row = first_row + i;
    if (i >= certain) {
      lay_out_padding(a.certain, row, slot);
      continue;
    }
    a.certain.token_ids[row] = record.tokens[i];
    a.certain.positions[row] = first_certain + i;
    a.certain.row_slots[row] = slot;
  }
}

constexpr void propose_place(const ProposeArgs& a, int place) {
  a.next.segments[place] = {.slot = 0, .first_row = place};
  lay_out_padding(a.next, place, 0);
  if (!place_has_rows(a.places, place)) return;
  const std::int32_t slot = a.places.slots[place];
  RoundSlot& s = a.places.table[slot];
  if (a.index >= s.num_drafts) return;
  const std::int32_t id = best_of_ranks(a.best, a.num_ranks, a.places.num_places, place).id;
  s.drafts[a.index] = id;
  if (a.index + 1 >= s.num_drafts) return;
  // The drafter keeps a token's entry at its own position.
  const std::int32_t position = s.position + 1 + a.index;
  a.next.segments[place].slot = slot;
  a.next.segments[place].num_rows = 1;
  a.next.segments[place].start_position = position;
  a.next.token_ids[place] = id;
  a.next.positions[place] = position;
  a.next.row_slots[place] = slot;
}

}  // namespace tandem::ops
