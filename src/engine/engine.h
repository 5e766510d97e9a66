// The step loop. Every rank of a tensor-parallel group runs it on the same requests and takes the
// same decisions, because all it decides on is equal on all ranks: the scheduler's state and the
// sampled tokens. What only one rank can know (a signal, memory running out) travels in a small
// message at the start of each step, together with a checksum over the tokens emitted so far and
// the times of the step before.
//
// One step: slots change hands; one pass over prompt rows; one round over generated rows (verify
// what was drafted, accept, draft again), which the device runs by itself (round_runner.h).
//
// Where there is nothing to do but the same sequences' next round, it is launched before the host
// has looked at this one's records: the device does not wait for the host, which is one round
// behind. What must not happen under a running round - admission, preemption, a prompt - waits
// until none is under way. A stop string is seen one round late; what was computed meanwhile is
// discarded.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/canary.h"
#include "engine/device_program.h"
#include "engine/engine_limits.h"
#include "engine/in_flight.h"
#include "engine/result_sink.h"
#include "engine/round_runner.h"
#include "engine/run_groups.h"
#include "engine/step_timer.h"
#include "parallel/host_comm.h"
#include "parallel/step_beacon.h"
#include "prompts/tokenizer.h"
#include "scheduler/scheduler.h"
#include "speculative/adaptive_depth.h"

namespace tandem {

// Why a job ends early; the most urgent one wins when several ranks ask.
enum class StopReason : std::int32_t { kNone = 0, kInterrupted = 1, kMemory = 2 };

struct EngineSettings {
  EngineLimits limits;
  SampleOptions sample;
  bool store_text = true;
  bool store_steps = true;
  std::vector<std::int32_t> stop_ids;
  bool clear_cache_between_groups = true;
  bool adaptive_depth = false;  // up to limits.draft_tokens
  // For tests: rounds as where they are recorded, padded and one ahead of the host.
  bool as_recorded = false;
  double time_zero_s = 0;  // monotonic time of the job's start on this host
};

// Snapshot of the loop for progress displays.
struct EngineStatus {
  const RunGroup* group = nullptr;
  std::int64_t requests_done = 0;
  std::int64_t requests_total = 0;
  std::int64_t running = 0;
  std::int64_t waiting = 0;
  std::int64_t output_tokens = 0;  // of this group
  std::int64_t pages_in_use = 0;
  std::int64_t num_pages = 0;
  std::int64_t drafted = 0;
  std::int64_t accepted = 0;
  double group_seconds = 0;
};

struct EngineDeps {
  Backend& backend;
  DeviceComm& comm;       // of the tensor-parallel group
  const HostComm& group;  // the same ranks, for the messages between steps
  StepBeacon& beacon;
  DeviceProgram& program;
  const Tokenizer& tokenizer;
  ResultSink* sink = nullptr;   // leaders only
  Canary* canary = nullptr;     // on all ranks or on none
  std::int64_t first_rank = 0;  // of this group in the job, for records
  // This rank's wish to stop, asked once a step.
  std::function<StopReason()> stop_reason;
  std::function<void(const EngineStatus&)> on_status;  // leaders; once a step
  // For tests: every verified round with its drafts and the number accepted.
  std::function<void(const InFlight&, std::span<const std::int32_t> drafts, int accepted)> on_round;
};

class Engine {
 public:
  Engine(EngineDeps deps, EngineSettings settings);

  // Runs the requests to their ends, in order of arrival, at most group.concurrency at a time.
  // Returns why it stopped early, or kNone. Throws Error{kRankFailure} when the ranks' tokens
  // diverge.
  StopReason run_group(const RunGroup& group, std::span<const Request* const> requests);

  std::int64_t num_steps() const { return step_; }
  // Rounds that were launched before the one before them had been looked at.
  std::int64_t num_rounds_ahead() const { return num_rounds_ahead_; }
  const Scheduler& scheduler() const { return scheduler_; }

 private:
  // A round that has been launched and not been looked at.
  struct Flight {
    bool under_way = false;
    std::vector<InFlight*> requests;  // by place
    StepRecord record;
    int depth = 0;             // of its drafts
    double collectives_s = 0;  // of the host, for it
  };

  // What the ranks tell each other at the start of a step.
  struct StepMessage {
    std::int64_t step = 0;
    std::uint64_t checksum = 0;  // over all tokens emitted so far
    StopReason stop = StopReason::kNone;
    // Rank 0's decisions for this step, which need its clock.
    std::int32_t draft_depth = 0;
    std::int32_t run_canary = 0;
    std::int32_t reserved = 0;
    Canary::Times canary{};  // this rank's latest times; zero: none since the last message
    double previous_duration_s = 0;
    StepSplit previous;  // times of the step before, for /steps
  };

  StopReason exchange();
  void take_decisions(StepMessage& mine);
  void run_canary();
  void tell_step(const std::vector<StepMessage>& all);
  void tell_canary(const std::vector<StepMessage>& all);
  void run_step(const StepPlan& plan);
  void close_step();
  void apply_resets(const StepPlan& plan);
  void prompt_pass(const StepPlan& plan);
  void round_pass(const StepPlan& plan);
  void run_known_rounds(const StepPlan& plan);
  StepRecord new_record(StepKind kind) const;
  static int mark_of_flight(std::size_t i) {
    return StepTimer::kFirstFreeMark + 2 * static_cast<int>(i);
  }
  bool flying() const { return flights_[newest_flight_].under_way; }
  bool runs_ahead() const;
  bool can_follow();
  void launch_round(int rows);
  void follow_round();
  // Reads the records of a round; `followed`: the next one has been launched.
  void land(Flight& flight, bool followed);
  void complete_round(InFlight& request, const ops::RoundRecord& round, int place, bool followed);
  // Appends a sampled token; returns false when the request has ended with it.
  bool emit(InFlight& request, const SampledToken& token);
  void finish_ended();
  void finish(InFlight& request);
  void fail(const Request& request, const std::string& error_class, const std::string& text);
  RequestRecord make_record(const InFlight& request) const;
  void wait_for_device();
  void write_page_table(const Sequence& seq);
  void upload_pages(const Sequence& seq);
  ops::SampleParams sample_params(const Sequence& seq, int position) const;
  std::span<const SampledToken> sample_rows();
  int wanted_drafts(const Sequence& seq) const;
  void join_rounds(Sequence& seq);
  void join_known_round(const RoundEntry& entry);
  ops::RoundSlot round_slot(const Sequence& seq, int position) const;
  InFlight& in_flight(const Sequence* seq) { return *by_index_.at(seq->index); }
  double now_s() const;
  void report_status();

  EngineDeps deps_;
  EngineSettings settings_;
  LayerContext context_;
  Scheduler scheduler_;
  StepTimer timer_;
  RoundRunner rounds_;

  RunGroup group_;
  std::unordered_map<int, std::unique_ptr<InFlight>> by_index_;
  std::int64_t step_ = 0;  // closed so far
  std::array<Flight, 2> flights_;
  std::size_t newest_flight_ = 0;
  std::int64_t num_rounds_ahead_ = 0;
  std::uint64_t checksum_ = 0;
  std::int64_t requests_done_ = 0;
  std::int64_t requests_total_ = 0;
  std::int64_t group_tokens_ = 0;
  std::int64_t group_drafted_ = 0;
  std::int64_t group_accepted_ = 0;
  double group_start_s_ = 0;

  std::optional<AdaptiveDepth> adaptive_depth_;  // rank 0 of the group
  int draft_depth_;                              // of the drafts made in this step
  double next_canary_s_ = 0;                     // rank 0 of the group; on its clock
  Canary::Times canary_times_{};                 // measured, not yet told
  std::vector<Canary::Times> canary_start_;      // [ranks], first times of the session
  bool canary_due_ = false;
  bool slow_machine_ = false;  // on any rank

  StepRecord record_;           // of the step at work
  double last_duration_s_ = 0;  // of the step before
  StepSplit last_split_;
  StepRecord last_record_;
  bool have_last_record_ = false;

  // Scratch of a step, reused.
  std::vector<ops::SampleParams> params_;
  std::vector<SampledToken> sampled_;
  std::vector<std::int32_t> slots_;  // of a launch
  std::vector<InFlight*> in_round_;  // those of the round to launch
  std::vector<InFlight*> finished_;
};

}  // namespace tandem
