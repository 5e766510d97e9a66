#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/units.h"
#include "engine/validators.h"

namespace tandem {
Engine::Engine(EngineDeps deps, EngineSettings settings)
    : deps_(std::move(deps)),
      settings_(std::move(settings)),
      context_{deps_.backend, deps_.comm, deps_.program.scratch(),
               settings_.limits.shape.activations},
      scheduler_(settings_.limits.scheduler),
      timer_(deps_.comm, deps_.backend),
      rounds_(context_, deps_.program,
              {.max_sequences = settings_.limits.shape.max_sequences,
               .draft_tokens = settings_.limits.draft_tokens,
               .adaptive_depth = settings_.adaptive_depth,
               .pad = settings_.as_recorded,
               .sample = settings_.sample}),
      draft_depth_(settings_.limits.draft_tokens) {
  const auto& shape = settings_.limits.shape;
  deps_.program.tables().clear(deps_.backend);
  deps_.program.rounds().clear(deps_.backend, settings_.stop_ids);
  if (settings_.adaptive_depth && settings_.limits.draft_tokens > 0 && deps_.comm.rank() == 0) {
    adaptive_depth_.emplace(settings_.limits.draft_tokens);
  }
  const auto rows = static_cast<std::size_t>(deps_.program.max_logit_rows());
  params_.reserve(rows);
  sampled_.resize(rows);
  slots_.reserve(static_cast<std::size_t>(shape.max_sequences));
  in_round_.reserve(static_cast<std::size_t>(shape.max_sequences));
  for (Flight& flight : flights_) {
    flight.requests.reserve(static_cast<std::size_t>(shape.max_sequences));
  }
  finished_.reserve(static_cast<std::size_t>(shape.max_sequences));
  const double begin_s = monotonic_s();
  const auto free_before = deps_.backend.free_bytes();
  const int recorded = rounds_.record();
  if (recorded > 0) {
    log_info("{} rounds recorded in {:.1f} s; they hold {}, planned were {}", recorded,
             monotonic_s() - begin_s,
             free_before ? format_bytes(*free_before - *deps_.backend.free_bytes()) : "?",
             format_bytes(
                 recorded_bytes(rounds_.job(), deps_.program.model().config().num_hidden_layers)));
  }
}

double Engine::now_s() const { return monotonic_s() - settings_.time_zero_s; }

StopReason Engine::run_group(const RunGroup& group, std::span<const Request* const> requests) {
  group_ = group;
  by_index_.clear();
  requests_done_ = 0;
  requests_total_ = static_cast<std::int64_t>(requests.size());
  group_tokens_ = group_drafted_ = group_accepted_ = 0;
  scheduler_.set_concurrency(group.concurrency);
  if (settings_.clear_cache_between_groups) scheduler_.clear_prefix_cache();

  group_start_s_ = now_s();
  for (int i = 0; i < static_cast<int>(requests.size()); ++i) {
    const Request& request = *requests[static_cast<std::size_t>(i)];
    if (!request.invalid_reason.empty()) {
      fail(request, "invalid_prompt", request.invalid_reason);
      continue;
    }
    auto entry = std::make_unique<InFlight>(request, i, settings_.limits.scheduler.max_context,
                                            deps_.tokenizer);
    entry->arrival_s = now_s();
    entry->slow_machine = slow_machine_;
    if (const auto reason = scheduler_.add(entry->seq)) {
      fail(request, "never_fits", *reason);
      continue;
    }
    by_index_.emplace(i, std::move(entry));
  }

  StopReason stop = StopReason::kNone;
  timer_.start_step();
  while (stop == StopReason::kNone && (flying() || !scheduler_.idle())) {
    stop = exchange();
    if (flying()) {
      Flight& running = flights_[newest_flight_];
      const bool follows = stop == StopReason::kNone && can_follow();
      if (follows) follow_round();
      land(running, follows);
    } else if (stop == StopReason::kNone) {
      if (canary_due_) run_canary();
      const StepPlan& plan = scheduler_.plan_step(Admission::kOpen);
      TANDEM_CHECK(!plan.empty(), "nothing planned while requests wait");
      run_step(plan);
    }
  }
  // The last step's times are still to be told, and its checksum to be compared.
  if (stop == StopReason::kNone) exchange();

  if (stop != StopReason::kNone) {
    for (auto& [index, entry] : by_index_) {
      if (entry->seq.state != SequenceState::kFinished) scheduler_.cancel(entry->seq);
    }
  }
  by_index_.clear();
  return stop;
}

// What needs a clock is decided on the group's rank 0 and takes effect in a fixed step.
void Engine::take_decisions(StepMessage& mine) {
  if (deps_.comm.rank() != 0) return;
  mine.draft_depth = adaptive_depth_ ? adaptive_depth_->choose() : settings_.limits.draft_tokens;
  if (deps_.canary != nullptr && monotonic_s() >= next_canary_s_) {
    mine.run_canary = 1;
    next_canary_s_ = monotonic_s() + Canary::kPeriod_s;
  }
}

StopReason Engine::exchange() {
  StepMessage mine{.step = step_,
                   .checksum = checksum_,
                   .stop = deps_.stop_reason ? deps_.stop_reason() : StopReason::kNone,
                   .canary = canary_times_,
                   .previous_duration_s = last_duration_s_,
                   .previous = last_split_};
  take_decisions(mine);
  std::vector<StepMessage> all;
  {
    const StepTimer::HostScope timed(timer_, &StepSplit::wait_rank_s);
    const BeaconScope scope(&deps_.beacon, "waiting for the other ranks between steps",
                            WaitsForPeers::kYes);
    all = deps_.group.all_gather(mine);
  }
  StopReason stop = StopReason::kNone;
  for (std::size_t r = 0; r < all.size(); ++r) {
    stop = std::max(stop, all[r].stop);
    if (all[r].checksum != all[0].checksum || all[r].step != all[0].step) {
      throw Error(
          ExitCode::kRankFailure,
          {.what =
               fmt::format("the ranks' results diverge: after step {} rank {} has token checksum "
                           "{:016x}, rank 0 has {:016x} after step {}",
                           all[r].step, r, all[r].checksum, all[0].checksum, all[0].step),
           .where = "engine",
           .expected = "equal tokens on all ranks of a tensor-parallel group",
           .remedy =
               "check memory and drivers of these hosts; what was finished before this step is "
               "saved"});
    }
  }
  tell_step(all);
  tell_canary(all);
  draft_depth_ = all[0].draft_depth;
  canary_due_ = canary_due_ || all[0].run_canary != 0;
  return stop;
}

// Not beside a round, which would take its share of the machine.
void Engine::run_canary() {
  canary_due_ = false;
  canary_times_ = deps_.canary->measure();
  timer_.start_step();  // the canary's time is not the step's
}

void Engine::tell_step(const std::vector<StepMessage>& all) {
  if (!have_last_record_) return;
  have_last_record_ = false;
  if (deps_.sink == nullptr || !settings_.store_steps) return;
  for (std::size_t r = 0; r < all.size(); ++r) {
    StepRecord record = last_record_;
    record.rank = deps_.first_rank + static_cast<std::int64_t>(r);
    record.duration_s = all[r].previous_duration_s;
    record.host_prepare_s = all[r].previous.host_prepare_s;
    record.device_compute_s = all[r].previous.device_compute_s;
    record.collective_s = all[r].previous.collective_s;
    record.sample_verify_s = all[r].previous.sample_verify_s;
    record.wait_rank_s = all[r].previous.wait_rank_s;
    deps_.sink->step_finished(record);
  }
}

void Engine::tell_canary(const std::vector<StepMessage>& all) {
  canary_times_ = {};
  if (all[0].canary[0] == 0) return;
  if (canary_start_.empty()) {
    for (const auto& message : all) canary_start_.push_back(message.canary);
  }
  slow_machine_ = false;
  for (std::size_t r = 0; r < all.size(); ++r) {
    for (std::size_t kernel = 0; kernel < Canary::kNumKernels; ++kernel) {
      CanaryRecord record;
      record.time_s = now_s();
      record.rank = deps_.first_rank + static_cast<std::int64_t>(r);
      record.name = Canary::kernel_name(kernel);
      record.duration_s = all[r].canary[kernel];
      record.ratio_to_start = record.duration_s / canary_start_[r][kernel];
      record.slow = *record.ratio_to_start > 1.0 + Canary::kSlowShare;
      slow_machine_ = slow_machine_ || record.slow;
      if (deps_.sink != nullptr) deps_.sink->canary_measured(record);
    }
  }
  if (slow_machine_ && deps_.sink != nullptr) {
    log_warning(
        "this machine is more than {:.0f} % slower than at the start of the job; rows made "
        "meanwhile are flagged (slow_machine)",
        100 * Canary::kSlowShare);
  }
  for (auto& [index, request] : by_index_) request->slow_machine |= slow_machine_;
}

void Engine::close_step() {
  last_split_ = timer_.finish_step();
  last_duration_s_ = monotonic_s() - timer_.start_s();
  const double measured_s = last_split_.device_compute_s + last_split_.collective_s +
                            last_split_.sample_verify_s + last_split_.wait_rank_s;
  last_split_.host_prepare_s = std::max(0.0, last_duration_s_ - measured_s);
  if (adaptive_depth_ && record_.kind == StepKind::kRound && record_.prompt_tokens == 0 &&
      record_.output_tokens > 0) {
    adaptive_depth_->count_time(
        static_cast<double>(record_.draft_tokens) /
            static_cast<double>(std::max<std::int64_t>(1, record_.sequences)),
        last_duration_s_);
  }
  last_record_ = record_;
  have_last_record_ = true;
  ++step_;
  deps_.beacon.step.store(static_cast<std::uint64_t>(step_), std::memory_order_relaxed);
  report_status();
  timer_.start_step();
}

StepRecord Engine::new_record(StepKind kind) const {
  StepRecord record;
  record.step = step_ + (flying() ? 1 : 0);
  record.start_s = now_s();
  record.kind = kind;
  record.concurrency = group_.concurrency;
  record.warmup = group_.warmup;
  record.sequences = scheduler_.num_active();
  record.draft_depth = draft_depth_;
  record.pages_in_use = scheduler_.pages().num_in_use();
  record.waiting_requests = scheduler_.num_waiting();
  return record;
}

void Engine::run_step(const StepPlan& plan) {
  record_ = new_record(plan.rounds.empty() ? StepKind::kPrompt : StepKind::kRound);
  record_.prompt_tokens = plan.num_prompt_rows;
  wait_for_device();
  apply_resets(plan);
  if (!plan.chunks.empty()) prompt_pass(plan);
  round_pass(plan);
  if (!flying()) {
    wait_for_device();
    close_step();
  } else if (!runs_ahead()) {
    land(flights_[newest_flight_], false);
  }
}

void Engine::apply_resets(const StepPlan& plan) {
  for (const auto& reset : plan.resets) {
    const int slot = reset.seq->slot;
    if (reset.restore_snapshot == kNoSnapshot) {
      deps_.program.reset_slot(deps_.backend, slot);
    } else {
      deps_.program.restore_slot(deps_.backend, slot, reset.restore_snapshot);
    }
    deps_.program.tables().pending_rows[slot] = 0;
    auto& request = in_flight(reset.seq);
    if (!request.scheduled_s) request.scheduled_s = now_s();
  }
}

// The tables are read by what is enqueued; they may change only when that is done.
void Engine::wait_for_device() { deps_.backend.synchronize(); }

void Engine::write_page_table(const Sequence& seq) {
  std::int32_t* row = deps_.program.tables().page_table +
                      std::int64_t{seq.slot} * settings_.limits.shape.pages_per_sequence;
  std::copy(seq.pages.begin(), seq.pages.end(), row);
}

// All pages that the sequence owns: a round may write ahead of its rows.
void Engine::upload_pages(const Sequence& seq) {
  write_page_table(seq);
  deps_.program.tables().upload_pages(deps_.backend, seq.slot, static_cast<int>(seq.pages.size()));
}

void Engine::prompt_pass(const StepPlan& plan) {
  auto& program = deps_.program;
  auto& batch = program.batch();
  batch.clear(ops::RowClass::kPrompt);
  for (const auto& chunk : plan.chunks) {
    write_page_table(*chunk.seq);
    batch.add_segment(chunk.seq->slot, chunk.start, chunk.ends_prompt);
    for (int p = chunk.start; p < chunk.end(); ++p) {
      batch.add_row(chunk.seq->tokens[static_cast<std::size_t>(p)]);
    }
  }
  {
    const BeaconScope scope(&deps_.beacon, "prompt pass", WaitsForPeers::kNo);
    const StepTimer::Scope timed(timer_, &StepSplit::device_compute_s);
    program.model().forward(context_, batch.upload(deps_.backend), program.hidden());
    if (program.drafter() != nullptr) {
      program.drafter()->observe_prompt(context_, batch, program.hidden());
    }
    wait_for_device();
    for (const auto& chunk : plan.chunks) {
      program.tables().pending_rows[chunk.seq->slot] = 0;
      if (chunk.save_snapshot != kNoSnapshot) {
        program.save_slot(deps_.backend, chunk.seq->slot, chunk.save_snapshot);
      }
    }
  }

  params_.clear();
  for (std::size_t i = 0; i < plan.chunks.size(); ++i) {
    const auto& chunk = plan.chunks[i];
    if (!chunk.yields_token) continue;
    const auto& segment = batch.segment(static_cast<int>(i));
    program.logit_rows()[params_.size()] = segment.first_row + segment.num_rows - 1;
    params_.push_back(sample_params(*chunk.seq, chunk.end()));
  }
  auto tokens = sample_rows();

  slots_.clear();
  for (const auto& chunk : plan.chunks) {
    auto& request = in_flight(chunk.seq);
    scheduler_.complete_chunk(chunk);
    if (chunk.yields_token) {
      const bool alive = emit(request, tokens.front());
      tokens = tokens.subspan(1);
      if (!alive) {
        finished_.push_back(&request);
        continue;
      }
    }
    if (chunk.ends_prompt) join_rounds(request.seq);
  }
  finish_ended();
  if (slots_.empty()) return;
  const StepTimer::Scope timed(timer_, &StepSplit::device_compute_s);
  rounds_.draft_behind_prompts(slots_, draft_depth_);
}

std::span<const SampledToken> Engine::sample_rows() {
  if (params_.empty()) return {};
  auto& program = deps_.program;
  const BeaconScope scope(&deps_.beacon, "sampling", WaitsForPeers::kNo);
  {
    const StepTimer::Scope timed(timer_, &StepSplit::device_compute_s);
    rounds_.enqueue_logits(static_cast<int>(params_.size()));
  }
  {
    const StepTimer::Scope timed(timer_, &StepSplit::sample_verify_s);
    program.sampler().begin(context_, program.logits(), params_, settings_.sample);
  }
  wait_for_device();
  const auto out = std::span(sampled_).first(params_.size());
  program.sampler().finish(context_, program.logits(), settings_.sample, out);
  return out;
}

ops::SampleParams Engine::sample_params(const Sequence& seq, int position) const {
  const auto& s = seq.request->sampling;
  return {.temperature = s.temperature,
          .top_p = s.top_p,
          .min_p = s.min_p,
          .top_k = s.top_k,
          .key = {.seed = s.seed, .request = request_key(*seq.request)},
          .position = static_cast<std::uint32_t>(position)};
}

bool Engine::emit(InFlight& request, const SampledToken& token) {
  auto& seq = request.seq;
  seq.tokens.push_back(token.id);
  const std::int64_t event[3] = {seq.index, seq.len(), token.id};
  checksum_ = xxh3_64(event, sizeof event, checksum_);
  request.token_times_s.push_back(now_s());
  request.token_steps.push_back(record_.step);
  if (settings_.sample.logprobs) request.logprobs.push_back(token.logprob);
  if (settings_.sample.logit_hashes) request.logit_hashes.push_back(token.logit_hash);
  ++record_.output_tokens;
  ++group_tokens_;

  const bool stop_id = std::find(settings_.stop_ids.begin(), settings_.stop_ids.end(), token.id) !=
                       settings_.stop_ids.end();
  request.stop_string_hit = request.stop.push(token.id).has_value();
  if (request.stop_string_hit || (stop_id && !request.request().sampling.ignore_eos)) {
    request.finish = FinishReason::kStop;
  } else if (seq.len() == seq.limit_len) {
    request.finish = FinishReason::kLength;
  }
  return !request.finish.has_value();
}

int Engine::wanted_drafts(const Sequence& seq) const {
  if (seq.state != SequenceState::kRunning) return 0;
  // The row of the last useful draft is that of position limit_len - 2: it yields the last token.
  return std::clamp(seq.limit_len - 2 - (seq.len() - 1), 0, draft_depth_);
}

void Engine::finish_ended() {
  for (InFlight* request : finished_) finish(*request);
  finished_.clear();
}

void Engine::finish(InFlight& request) {
  // An unfinished character at the end becomes U+FFFD, which may itself complete a stop string.
  if (!request.stop_string_hit && request.stop.finish()) request.finish = FinishReason::kStop;
  scheduler_.finish(request.seq);
  ++requests_done_;
  if (deps_.sink != nullptr) deps_.sink->request_finished(make_record(request));
}

void Engine::fail(const Request& request, const std::string& error_class, const std::string& text) {
  ++requests_done_;
  if (deps_.sink == nullptr) return;
  RequestRecord record;
  record.id = request.id;
  record.tags = request.tags;
  record.run_index = group_.run_index;
  record.concurrency = group_.concurrency;
  record.warmup = group_.warmup;
  record.finish_reason = FinishReason::kError;
  record.error_class = error_class;
  record.error_text = text;
  record.seed = request.sampling.seed;
  record.arrival_s = now_s();
  record.prompt_ids = request.prompt_ids;
  if (settings_.store_text) record.prompt_text = request.prompt_text;
  deps_.sink->request_finished(std::move(record));
}

RequestRecord Engine::make_record(const InFlight& request) const {
  const auto& seq = request.seq;
  RequestRecord record;
  record.id = request.request().id;
  record.tags = request.request().tags;
  record.run_index = group_.run_index;
  record.concurrency = group_.concurrency;
  record.warmup = group_.warmup;
  record.cached_prompt_tokens = seq.cached_prompt_tokens;
  record.thinking_tokens = request.stop.thinking_tokens();
  record.discarded_tokens = request.discarded_tokens;
  record.finish_reason = *request.finish;
  record.slow_machine = request.slow_machine;
  record.seed = request.request().sampling.seed;
  record.arrival_s = request.arrival_s;
  record.scheduled_s = request.scheduled_s;
  record.first_token_s = request.token_times_s.front();
  record.last_token_s = request.token_times_s.back();
  record.draft_rounds = request.acceptance.rounds();
  record.bonus_tokens = request.acceptance.bonus_tokens();
  record.draft_proposed = request.acceptance.proposed();
  record.draft_accepted = request.acceptance.accepted();
  record.prompt_ids = request.request().prompt_ids;
  record.completion_ids.assign(seq.tokens.begin() + seq.prompt_len, seq.tokens.end());
  record.token_times_s = request.token_times_s;
  record.token_steps = request.token_steps;
  record.logprobs = request.logprobs;
  record.logit_hashes = request.logit_hashes;
  const std::string& text = request.stop.text();
  run_validators(request.request(), std::string_view(text).substr(request.stop.answer_begin()),
                 record);
  record.repetition = ends_in_repetition(record.completion_ids);
  if (settings_.store_text) {
    record.prompt_text = request.request().prompt_text;
    record.completion_text = text;
  }
  return record;
}

void Engine::report_status() {
  if (!deps_.on_status) return;
  deps_.on_status({.group = &group_,
                   .requests_done = requests_done_,
                   .requests_total = requests_total_,
                   .running = scheduler_.num_active(),
                   .waiting = scheduler_.num_waiting(),
                   .output_tokens = group_tokens_,
                   .pages_in_use = scheduler_.pages().num_in_use(),
                   .num_pages = scheduler_.pages().num_pages(),
                   .drafted = group_drafted_,
                   .accepted = group_accepted_,
                   .group_seconds = now_s() - group_start_s_});
}

}  // namespace tandem
