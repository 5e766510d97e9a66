// The order of a run matters more than its parts. Everything that can be refused is refused before
// anything expensive starts: configuration, rank layout, identity of the ranks, prompts, output
// file, memory plan, and only then the weights. Until then every step is agreed between the ranks
// (HostComm::together), so that all of them leave with the same error; afterwards a failing rank
// reports to the guard, which saves and ends the job.
#include "engine/job_run.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/units.h"
#include "engine/job_passport.h"
#include "engine/job_sharing.h"
#include "engine/power_sampler.h"
#include "engine/progress.h"
#include "engine/rank_engine.h"
#include "engine/record_exchange.h"
#include "engine/result_file_sink.h"
#include "engine/telemetry.h"
#include "parallel/make_device_comm.h"
#include "parallel/rank_guard.h"
#include "parallel/rdma_counters.h"
#include "parallel/signals.h"
#include "parallel/transport.h"

namespace tandem {
namespace {

constexpr std::chrono::seconds kFailureFlush{4};

// What is left to do of each group: indices into the requests.
std::vector<std::vector<int>> share_work(const HostComm& world, const std::vector<RunGroup>& groups,
                                         const std::vector<Request>& requests,
                                         const std::set<WorkKey>& completed) {
  std::vector<std::vector<int>> work(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (world.rank() == 0) {
      for (int i = 0; i < static_cast<int>(requests.size()); ++i) {
        const WorkKey key{.id = requests[static_cast<std::size_t>(i)].id,
                          .concurrency = groups[g].concurrency,
                          .run_index = groups[g].run_index,
                          .warmup = groups[g].warmup};
        if (!completed.contains(key)) work[g].push_back(i);
      }
    }
    world.bcast(work[g]);
  }
  return work;
}

class JobRun {
 public:
  JobRun(MpiEnv& mpi, const JobRunOptions& options)
      : mpi_(mpi),
        options_(options),
        world_(HostComm::world()),
        records_(world_.duplicate()),
        time_zero_s_(monotonic_s()) {}

  int run() {
    shared_ = share_job(world_, options_.job_file, options_.overrides);
    if (root() && !options_.quiet) fmt::print(stderr, "{}\n", effective_table(shared_.job));
    const JobConfig& job = shared_.job.config;
    layout_ = agree_rank_layout(world_, job.parallel);
    world_.together([&] {
      check_determinism(job, layout_);
      // What leaves no record is judged at once; the rest when it has been seen at work.
      if (!keeps_record(
              resolve_collectives(job.parallel.collectives, resolve_backend(job.backend))))
        enforce_transport(job.transport.require, layout_, mpi_transport(layout_));
    });
    if (root() && !options_.quiet) fmt::print(stderr, "{}\n", render_rank_map(layout_));
    start_guard(job);
    try {
      set_up(job);
    } catch (const Error& error) {
      if (error.scope() != ErrorScope::kAllRanks) {
        mpi_.abandon();
        guard_->fail(error);
      }
      // All ranks are here with the same error and nothing is half done.
      close_quietly();
      throw;
    }
    if (complete_ && root()) {
      log_info("{} is complete: nothing is left to resume", shared_.output_file);
    }
    if (options_.dry_run || complete_) {
      close_quietly();
      return static_cast<int>(ExitCode::kDone);
    }
    try {
      const StopReason stop = run_groups_in_order();
      return finish(stop);
    } catch (const Error& error) {
      mpi_.abandon();
      guard_->fail(error);
    } catch (const std::exception& error) {
      mpi_.abandon();
      guard_->fail({.what = error.what(), .where = "engine", .expected = "", .remedy = ""},
                   ExitCode::kInternal);
    }
  }

 private:
  bool root() const { return world_.rank() == 0; }

  void start_guard(const JobConfig& job) {
    RankGuardOptions guard;
    guard.stall_timeout_s = job.run.stall_timeout_s;
    if (root()) {
      guard.on_failure = [this](const Failure& failure) {
        // The message itself is the guard's to print; here it goes into the file.
        if (writer_ == nullptr) return;
        writer_->submit(LogEvent{.session = 0,
                                 .time_s = monotonic_s() - time_zero_s_,
                                 .rank = failure.rank,
                                 .level = LogLevel::kError,
                                 .text = failure.message});
        writer_->flush_now(kFailureFlush);
      };
      guard.on_message = [this](int, std::uint32_t kind, std::string bytes) {
        auto* writer = writer_for_samples_.load();
        if (writer == nullptr) return;
        if (kind == kMemoryRowMessage) writer->submit(deserialize_memory_row(bytes));
        if (kind == kPowerRowMessage) writer->submit(deserialize_power_sample(bytes));
      };
    }
    guard_ = std::make_unique<RankGuard>(world_, beacon_, std::move(guard));
  }

  void set_up(const JobConfig& job) {
    files_ =
        world_.together([&] { return std::make_unique<ModelFiles>(open_model_files(job.model)); });
    for (const auto& warning : files_->tokenizer.warnings()) {
      if (root()) log_warning("{}", warning);
    }
    require_same_identity(world_, layout_, identity_facts(*files_, shared_.job.resolved_yaml));
    limits_ = world_.together([&] { return resolve_limits(job, files_->config); });
    prompts_ = share_prompts(world_, job, *files_, limits_,
                             options_.skip_bad_prompts ? BadPrompts::kSkip : BadPrompts::kRefuse);
    open_result(job);
    if (complete_) return;

    progress_ = std::make_unique<Progress>(
        root() ? detect_progress_mode(options_.quiet) : ProgressMode::kOff,
        static_cast<int>(groups_.size()));
    engine_parts_ = std::make_unique<RankEngine>(
        RankEngineInputs{.job = job,
                         .files = *files_,
                         .world = world_,
                         .layout = layout_,
                         .beacon = beacon_,
                         .on_phase =
                             [&](const std::string& phase) {
                               // While the plan is made, it is for the plan to say that memory is
                               // short.
                               if (phase == "plan") return;
                               if (telemetry_ == nullptr) start_telemetry(job);
                               telemetry_->enter_phase(phase);
                             },
                         .on_load = [this](const LoadProgress& p) { progress_->loading(p); },
                         .on_comm_failure =
                             [this](const ErrorText& text, ExitCode code) {
                               // Once all is said and done, a rank that leaves is no failure.
                               if (!ending_) guard_->fail(text, code);
                             }});
    world_.together([&] { canary_ = std::make_unique<Canary>(engine_parts_->backend()); });
    describe_start();
    world_.together([&] {
      if (writer_ != nullptr) writer_->publish();
    });
  }

  void start_telemetry(const JobConfig& job) {
    telemetry_ = std::make_unique<Telemetry>(
        world_.rank(), job.memory.reserve_bytes, time_zero_s_, [this](const MemoryRow& row) {
          if (!root()) {
            guard_->send_to_root(kMemoryRowMessage, serialize(row));
          } else if (auto* writer = writer_for_samples_.load()) {
            writer->submit(row);
          }
        });
    power_ =
        std::make_unique<PowerSampler>(world_.rank(), time_zero_s_, [this](const PowerSample& row) {
          if (!root()) {
            guard_->send_to_root(kPowerRowMessage, serialize(row));
          } else if (auto* writer = writer_for_samples_.load()) {
            writer->submit(row);
          }
        });
  }

  // Before the weights: a result that cannot be written must not cost a night. It becomes visible
  // only when nothing can be refused any more.
  void open_result(const JobConfig& job) {
    groups_ = run_groups(job);
    ResumePlan resume;
    world_.together([&] {
      if (!root() || options_.dry_run) return;
      const JobDescription description{.job = shared_.job,
                                       .files = *files_,
                                       .layout = layout_,
                                       .limits = limits_,
                                       .requests = prompts_.requests,
                                       .prompt_file_sha256 = prompts_.sha256};
      WriterOptions writer;
      writer.file = shared_.output_file;
      writer.first_file = FirstFile::kAtPublish;
      writer.flush_every_s = job.output.flush_every_s;
      writer.ranks_per_replica = layout_.tensor;
      writer.facts = job_run_facts(description);
      writer.passport = job_passport(description);
      if (options_.hash_weights) {
        writer.passport.set("checkpoint.sha256", files_->checkpoint.hash_weights());
      }
      if (options_.overwrite) writer.existing = ExistingFile::kOverwrite;
      if (options_.resume) {
        resume = plan_resume(writer.file, writer.facts);
        writer.existing = ExistingFile::kResume;
      }
      writer_ = std::make_unique<ResultWriter>(std::move(writer));
      writer_for_samples_ = writer_.get();
      file_sink_ = std::make_unique<ResultFileSink>(*writer_);
      receiver_ = std::make_unique<RecordReceiver>(records_, *file_sink_);
      log_set_sink([this](LogLevel level, std::string_view text) {
        writer_->submit(LogEvent{.session = 0,
                                 .time_s = monotonic_s() - time_zero_s_,
                                 .rank = 0,
                                 .level = level,
                                 .text = std::string(text)});
      });
    });
    work_ = share_work(world_, groups_, prompts_.requests, resume.completed);
    complete_ = resume.ended && std::all_of(work_.begin(), work_.end(),
                                            [](const auto& group) { return group.empty(); });
    world_.bcast(complete_);
    if (layout_.replica_leader() && !root())
      forwarding_sink_ = std::make_unique<ForwardingSink>(records_);
  }

  void describe_start() {
    const auto& plan = engine_parts_->plan();
    std::int64_t total = 0;
    for (const auto& [name, bytes] : plan.counts.bytes_by_part()) {
      total += static_cast<std::int64_t>(bytes);
    }
    telemetry_->set_device_bytes(total);
    std::string why;
    auto sensors = make_device_sensors(engine_parts_->backend(), why);
    const std::string driver = sensors != nullptr ? sensors->driver_version() : "";
    power_->watch(std::move(sensors), why);
    if (!root()) return;
    const auto& stats = engine_parts_->load_stats();
    log_info("backend {}; {} per rank in arenas; KV pool {} pages of {} tokens; {} read in {}",
             engine_parts_->backend().description(), format_bytes(total),
             plan.limits.shape.num_pages, plan.limits.shape.page_tokens,
             format_bytes(stats.bytes_read), format_duration(stats.seconds));
    if (writer_ == nullptr) return;
    Passport more;
    more.set("backend", engine_parts_->backend().description());
    if (!driver.empty()) more.set("gpu.driver_version", driver);
    more.set("collectives", engine_parts_->comm().transport());
    add_transport(engine_parts_->transport(), more);
    more.set("load.bytes_read", stats.bytes_read);
    more.set("load.seconds", stats.seconds);
    switch (engine_parts_->program().model().kv_calibration()) {
      case KvCalibration::kNotNeeded:
        break;
      case KvCalibration::kMeasured:
        more.set("precision.kv_scales", "of the checkpoint");
        break;
      case KvCalibration::kUnit:
        more.set("precision.kv_scales", "1.0, NOT CALIBRATED");
        break;
    }
    more.set("memory.kv_pages", std::int64_t{plan.limits.shape.num_pages});
    more.set("memory.kv_page_bytes", plan.page_bytes);
    for (const auto& [name, bytes] : plan.counts.bytes_by_part()) {
      more.set("memory.plan." + name, static_cast<std::int64_t>(bytes));
    }
    writer_->add_to_passport(more);
  }

  StopReason run_groups_in_order() {
    const JobConfig& job = shared_.job.config;
    EngineDeps deps{.backend = engine_parts_->backend(),
                    .comm = engine_parts_->comm(),
                    .group = engine_parts_->group(),
                    .beacon = beacon_,
                    .program = engine_parts_->program(),
                    .tokenizer = files_->tokenizer,
                    .sink = sink(),
                    .canary = canary_.get(),
                    .first_rank = std::int64_t{layout_.replica} * layout_.tensor,
                    .stop_reason = [this] { return wish_to_stop(); },
                    .on_status = [this](const EngineStatus& s) { between_steps(s); },
                    .on_round = {}};
    Engine engine(std::move(deps), {.limits = engine_parts_->plan().limits,
                                    .sample = {.logprobs = job.output.logprobs > 0,
                                               .logit_hashes = job.output.logit_hash},
                                    .store_text = job.output.text,
                                    .store_steps = job.output.steps,
                                    .stop_ids = files_->config.stop_ids,
                                    .clear_cache_between_groups = true,
                                    .adaptive_depth = job.speculative.adaptive,
                                    .time_zero_s = time_zero_s_});
    StopReason stop = StopReason::kNone;
    for (std::size_t g = 0; g < groups_.size() && stop == StopReason::kNone; ++g) {
      if (!work_[g].empty()) stop = run_one_group(engine, groups_[g], work_[g]);
      progress_->end_group();
    }
    return stop;
  }

  // All replicas start a group together and share its requests; the group ends with the last one.
  StopReason run_one_group(Engine& engine, const RunGroup& group, const std::vector<int>& work) {
    std::vector<const Request*> requests;
    for (std::size_t i = 0; i < work.size(); ++i) {
      if (static_cast<int>(i % static_cast<std::size_t>(layout_.data)) != layout_.replica) continue;
      requests.push_back(&prompts_.requests[static_cast<std::size_t>(work[i])]);
    }
    GroupRecord record;
    record.concurrency = group.concurrency;
    record.run_index = group.run_index;
    record.warmup = group.warmup;
    record.start_s = monotonic_s() - time_zero_s_;
    if (root()) {
      receiver_->start_group();
      writer_->submit(record);
    }
    guard_->begin_watch();
    StopReason stop = requests.empty() ? StopReason::kNone : engine.run_group(group, requests);
    guard_->end_watch();
    if (layout_.data > 1) stop = join_replicas(stop);
    if (root() && stop == StopReason::kNone) {
      record.end_s = monotonic_s() - time_zero_s_;
      writer_->submit(record);
    }
    return stop;
  }

  // Waits for the other replicas' records of the group; the most urgent wish to stop wins.
  StopReason join_replicas(StopReason stop) {
    const BeaconScope scope(&beacon_, "waiting for the other replicas", WaitsForPeers::kYes);
    if (forwarding_sink_) forwarding_sink_->end_group();
    if (root()) {
      while (receiver_->groups_ended() < layout_.data - 1) {
        receiver_->poll();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    const auto all = world_.all_gather(stop);
    return *std::max_element(all.begin(), all.end());
  }

  ResultSink* sink() {
    if (root()) return file_sink_.get();
    return forwarding_sink_.get();
  }

  StopReason wish_to_stop() const {
    if (telemetry_->stop_reason() != StopReason::kNone) return StopReason::kMemory;
    return stop_requested() ? StopReason::kInterrupted : StopReason::kNone;
  }

  void between_steps(const EngineStatus& status) {
    progress_->running(status);
    if (root()) receiver_->poll();
  }

  // What the adapters of rank 0's host moved since the start: a run that claims RDMA must have.
  void describe_traffic(Passport& more) const {
    const auto now = read_rdma_counters();
    if (now.empty()) return;
    const auto moved = rdma_difference(rdma_at_start_, now);
    more.set("transport.rdma_sent_bytes", moved.sent_bytes);
    more.set("transport.rdma_received_bytes", moved.received_bytes);
    more.set("transport.rdma_errors", moved.errors);
    const auto& transport = engine_parts_->transport();
    if (transport.crosses_hosts_by_rdma && moved.sent_bytes == 0) {
      log_warning("transport {}, but the adapters' counters did not move", transport.name);
    }
    if (moved.errors > 0) {
      log_warning("RDMA adapters counted {} errors (lost, late or repeated packets)", moved.errors);
    }
  }

  int finish(StopReason stop) {
    ExitCode code = ExitCode::kDone;
    if (stop == StopReason::kInterrupted) code = ExitCode::kInterrupted;
    if (stop == StopReason::kMemory) code = ExitCode::kMemoryWatchdog;
    power_.reset();
    if (root()) {
      if (code == ExitCode::kDone && file_sink_->num_failed() > 0) code = ExitCode::kSomeFailed;
      Passport more;
      more.set("memory.lows", telemetry_->lows_text());
      describe_traffic(more);
      writer_->add_to_passport(more);
      log_set_sink(nullptr);
      writer_for_samples_ = nullptr;
      writer_->finish(code);
      fmt::print(stderr, "tandem: results in {}\n", shared_.output_file);
    }
    progress_.reset();
    auto value = static_cast<int>(code);
    world_.bcast(value);
    ending_ = true;
    guard_->goodbye();
    return value;
  }

  // After an error that all ranks share, or a dry run.
  void close_quietly() {
    log_set_sink(nullptr);
    writer_for_samples_ = nullptr;
    power_.reset();
    telemetry_.reset();
    guard_->goodbye();
  }

  MpiEnv& mpi_;
  const JobRunOptions& options_;
  HostComm world_;
  HostComm records_;  // for records between replicas
  double time_zero_s_;
  StepBeacon beacon_;
  std::atomic<bool> ending_{false};  // every rank's work is done
  const RdmaCounters rdma_at_start_ = read_rdma_counters();
  SharedJob shared_;
  RankLayout layout_;
  std::unique_ptr<ModelFiles> files_;
  EngineLimits limits_;
  SharedPrompts prompts_;
  std::vector<RunGroup> groups_;
  bool complete_ = false;                 // a resumed file that lacks nothing: left as it is
  std::vector<std::vector<int>> work_;    // [groups]
  std::unique_ptr<ResultWriter> writer_;  // rank 0
  std::atomic<ResultWriter*> writer_for_samples_{nullptr};
  std::unique_ptr<ResultFileSink> file_sink_;        // rank 0
  std::unique_ptr<RecordReceiver> receiver_;         // rank 0
  std::unique_ptr<ForwardingSink> forwarding_sink_;  // leaders of other replicas
  std::unique_ptr<RankGuard> guard_;
  std::unique_ptr<Telemetry> telemetry_;
  std::unique_ptr<PowerSampler> power_;
  std::unique_ptr<RankEngine> engine_parts_;
  std::unique_ptr<Canary> canary_;
  std::unique_ptr<Progress> progress_;
};

}  // namespace

int run_job(MpiEnv& mpi, const JobRunOptions& options) {
  install_signal_handlers();
  return JobRun(mpi, options).run();
}

}  // namespace tandem
