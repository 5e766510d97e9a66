// The engine's rounds: who takes part, launching one, launching the next before this one has been
// looked at, and what a record means for its request.
#include <algorithm>

#include "engine/engine.h"

namespace tandem {

ops::RoundSlot Engine::round_slot(const Sequence& seq, int position) const {
  return {.last_token = seq.tokens[static_cast<std::size_t>(position)],
          .position = position,
          .limit_len = seq.limit_len,
          .stops = seq.request->sampling.ignore_eos ? 0 : 1,
          .sampling = sample_params(seq, 0)};
}

// Behind the prompt: the token that it yielded, or before a recomputation the one that is known.
void Engine::join_rounds(Sequence& seq) {
  upload_pages(seq);
  seq.num_drafts = wanted_drafts(seq);
  ops::RoundSlot slot = round_slot(seq, seq.prompt_len);
  slot.num_drafts = seq.num_drafts;
  deps_.program.rounds().join(deps_.backend, seq.slot, slot);
  slots_.push_back(seq.slot);
}

void Engine::join_known_round(const RoundEntry& entry) {
  const auto& seq = *entry.seq;
  ops::RoundSlot slot = round_slot(seq, entry.start);
  slot.num_drafts = entry.num_rows - 1;
  const auto behind = seq.tokens.begin() + entry.start + 1;
  std::copy_n(behind, slot.num_drafts, slot.drafts);
  slot.known_next = behind[slot.num_drafts];
  deps_.program.rounds().join(deps_.backend, seq.slot, slot);
  slots_.push_back(seq.slot);
}

// Rows that are computed again: their tokens are known, so their round yields none and has no
// record that the host would have to read.
void Engine::run_known_rounds(const StepPlan& plan) {
  slots_.clear();
  int rows = 0;
  int depth = 0;
  for (const auto& entry : plan.rounds) {
    if (!entry.forced) continue;
    auto& seq = *entry.seq;
    upload_pages(seq);
    join_known_round(entry);
    rows = std::max(rows, entry.num_rows);
    scheduler_.complete_round(entry, entry.num_rows);
    seq.num_drafts = wanted_drafts(seq);
    if (seq.state == SequenceState::kRunning) depth = draft_depth_;
  }
  if (slots_.empty()) return;
  const StepTimer::Scope timed(timer_, &StepSplit::device_compute_s);
  rounds_.run_known(slots_, rows, depth);
  for (const auto& entry : plan.rounds) {
    if (entry.forced) deps_.program.tables().note_pending_rows(entry.seq->slot, entry.num_rows);
  }
}

void Engine::round_pass(const StepPlan& plan) {
  run_known_rounds(plan);
  in_round_.clear();
  int rows = 0;
  for (const auto& entry : plan.rounds) {
    if (entry.forced) continue;
    in_round_.push_back(&in_flight(entry.seq));
    rows = std::max(rows, entry.num_rows);
  }
  if (!in_round_.empty()) launch_round(rows);
}

// A test mode looks at the logits of a round, which the next one overwrites.
bool Engine::runs_ahead() const { return rounds_.pads() && !settings_.sample.logit_hashes; }

// The next round of in_round_.
void Engine::launch_round(int rows) {
  const std::size_t copy = 1 - newest_flight_;
  Flight& flight = flights_[copy];
  TANDEM_CHECK(!flight.under_way, "three rounds at a time");
  flight.requests.assign(in_round_.begin(), in_round_.end());
  flight.record = record_;
  flight.depth = draft_depth_;
  slots_.clear();
  bool any_draws = false;
  for (const InFlight* request : in_round_) {
    upload_pages(request->seq);
    slots_.push_back(request->seq.slot);
    any_draws = any_draws || request->request().sampling.temperature > 0;
  }
  const int first_mark = mark_of_flight(copy);
  const double collectives_s = deps_.comm.seconds_in_collectives();
  const BeaconScope scope(&deps_.beacon, "round", WaitsForPeers::kNo);
  deps_.backend.mark(first_mark);
  rounds_.run(slots_, rows, draft_depth_, Sampler::method_of(any_draws, settings_.sample));
  deps_.program.rounds().fetch_records(deps_.backend, static_cast<int>(slots_.size()),
                                       static_cast<int>(copy));
  deps_.backend.mark(first_mark + 1);
  flight.collectives_s = deps_.comm.seconds_in_collectives() - collectives_s;
  flight.under_way = true;
  newest_flight_ = copy;
}

// Whether the sequences of the round under way go through another one whatever it brings, and
// nothing else is to be done before.
bool Engine::can_follow() {
  if (!runs_ahead() || canary_due_) return false;
  int active = 0;
  bool outlasts_it = false;
  for (const InFlight* request : flights_[newest_flight_].requests) {
    if (request->seq.is_active()) ++active;
    // The round brings one token at least.
    if (!request->finish && request->seq.len() + 1 < request->seq.limit_len) outlasts_it = true;
  }
  return outlasts_it && active == scheduler_.num_active() && scheduler_.reserve_following_round();
}

void Engine::follow_round() {
  const Flight& before = flights_[newest_flight_];
  in_round_.clear();
  for (InFlight* request : before.requests) {
    if (!request->finish) in_round_.push_back(request);
  }
  record_ = new_record(StepKind::kRound);
  ++num_rounds_ahead_;
  launch_round(before.depth + 1);
}

void Engine::land(Flight& flight, bool followed) {
  const int copy = &flight == &flights_[0] ? 0 : 1;
  const int first_mark = mark_of_flight(static_cast<std::size_t>(copy));
  {
    const BeaconScope scope(&deps_.beacon, "round", WaitsForPeers::kNo);
    deps_.backend.wait_for_mark(first_mark + 1);
  }
  timer_.add_compute(deps_.backend.seconds_between(first_mark, first_mark + 1),
                     flight.collectives_s);
  record_ = flight.record;
  for (std::size_t i = 0; i < flight.requests.size(); ++i) {
    const int place = static_cast<int>(i);
    complete_round(*flight.requests[i], deps_.program.rounds().record(place, copy), place,
                   followed);
  }
  flight.under_way = false;
  group_drafted_ += record_.draft_tokens;
  group_accepted_ += record_.accepted_tokens;
  finish_ended();
  close_step();
}

void Engine::complete_round(InFlight& request, const ops::RoundRecord& round, int place,
                            bool followed) {
  if (request.finish) {  // before this round was looked at
    if (!request.in_surplus_round) return;
    if (round.slot != ops::kNoSlot) request.discarded_tokens += round.accepted + 1;
    finished_.push_back(&request);
    return;
  }
  auto& seq = request.seq;
  const RoundEntry entry = scheduler_.round_entry(seq);
  TANDEM_CHECK(round.slot == seq.slot && round.position == entry.start &&
                   round.num_drafts == entry.num_rows - 1,
               "sequence {}: slot {} at {} with {} drafts, the round had slot {} at {} with {}",
               seq.index, seq.slot, entry.start, entry.num_rows - 1, round.slot, round.position,
               round.num_drafts);
  request.acceptance.count_round(round.num_drafts, round.accepted);
  record_.draft_tokens += round.num_drafts;
  record_.accepted_tokens += round.accepted;
  if (adaptive_depth_) adaptive_depth_->count_round(round.num_drafts, round.accepted);
  if (deps_.on_round) {
    deps_.on_round(request,
                   std::span(round.drafts).first(static_cast<std::size_t>(round.num_drafts)),
                   round.accepted);
  }
  deps_.program.tables().note_pending_rows(seq.slot, round.accepted + 1);
  for (int i = 0; i <= round.accepted; ++i) {
    SampledToken token{.id = round.tokens[i], .logprob = round.logprobs[i]};
    if (settings_.sample.logit_hashes) {
      token.logit_hash = deps_.program.sampler().hash_row(context_, deps_.program.logits(),
                                                          rounds_.row_of(place, i));
    }
    if (emit(request, token)) continue;
    request.discarded_tokens += round.accepted - i;
    // An end that only the host knows of: the device has gone on.
    request.in_surplus_round = followed && round.ended == 0;
    if (!request.in_surplus_round) finished_.push_back(&request);
    return;
  }
  scheduler_.complete_round(entry, round.accepted + 1);
  seq.num_drafts = round.next_num_drafts;
}

}  // namespace tandem
