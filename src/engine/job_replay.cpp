#include "engine/job_replay.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/counter_rng.h"
#include "engine/job_passport.h"
#include "engine/job_sharing.h"
#include "engine/rank_engine.h"
#include "engine/request_exchange.h"
#include "output/result_reader.h"
#include "parallel/rank_guard.h"
#include "parallel/signals.h"

namespace tandem {
namespace {

class CollectingSink final : public ResultSink {
 public:
  void request_finished(RequestRecord&& record) override { records.push_back(std::move(record)); }
  void step_finished(const StepRecord&) override {}
  void canary_measured(const CanaryRecord&) override {}

  std::vector<RequestRecord> records;
};

// Fisher-Yates with the counter-based generator: the same sample for the same seed everywhere.
std::vector<std::size_t> choose(std::vector<std::size_t> rows, int sample, std::uint64_t seed) {
  for (std::size_t i = 0; i + 1 < rows.size(); ++i) {
    const auto bits = random_bits({.seed = seed, .request = 0}, static_cast<std::uint32_t>(i),
                                  RngPurpose::kSample, 0);
    std::swap(rows[i], rows[i + bits % (rows.size() - i)]);
  }
  rows.resize(std::min(rows.size(), static_cast<std::size_t>(sample)));
  return rows;
}

// One row a request: repeats of a request hold the same tokens, or the run itself was not
// reproducible, which the comparison with one of them shows as well.
std::vector<std::size_t> finished_rows(const ResultContents& contents) {
  std::map<std::string, std::size_t> by_id;
  for (std::size_t i = 0; i < contents.requests.size(); ++i) {
    const auto& row = contents.requests[i];
    const bool finished =
        row.finish_reason == FinishReason::kStop || row.finish_reason == FinishReason::kLength;
    if (finished && !row.warmup) by_id.emplace(row.id, i);
  }
  std::vector<std::size_t> rows;
  for (const auto& [id, row] : by_id) rows.push_back(row);
  return rows;
}

void require_same_inputs(const ResultContents& contents, const JobDescription& now,
                         const std::string& file) {
  RunFacts facts = job_run_facts(now);
  // What the user overrides on purpose, and what determinism frees, is not compared: the tokens
  // are.
  facts.token_keys = contents.facts.token_keys;
  facts.num_ranks = contents.facts.num_ranks;
  facts.program_version = contents.facts.program_version;
  const auto differences = compare_run_facts(contents.facts, facts);
  if (differences.empty()) return;
  std::string list;
  for (const auto& d : differences) list += "\n  " + d;
  throw Error(ExitCode::kConfiguration,
              {.what = "the inputs are not those of the result file:" + list,
               .where = file,
               .expected = "the checkpoint, tokenizer and prompts the file was made from",
               .remedy = "point to them with --set model.path=... or --set prompts.file=..."});
}

std::string describe_difference(const RequestRecord& stored, const RequestRecord& now) {
  const auto& a = stored.completion_ids;
  const auto& b = now.completion_ids;
  const auto [x, y] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  const auto at = x - a.begin();
  return fmt::format(
      "{}: first difference at completion token {} ({} stored, {} now; lengths {} and {})",
      stored.id, at, x == a.end() ? "end" : std::to_string(*x),
      y == b.end() ? "end" : std::to_string(*y), a.size(), b.size());
}

int compare(const ResultContents& contents, const std::vector<std::size_t>& rows,
            const std::vector<RequestRecord>& records) {
  std::map<std::string, const RequestRecord*> now;
  for (const auto& record : records) now[record.id] = &record;
  int equal = 0;
  std::int64_t tokens = 0;
  std::vector<std::string> differences;
  for (const auto row : rows) {
    const auto& stored = contents.requests[row];
    const auto it = now.find(stored.id);
    if (it == now.end()) {
      differences.push_back(stored.id + ": did not finish");
    } else if (it->second->completion_ids == stored.completion_ids) {
      ++equal;
      tokens += static_cast<std::int64_t>(stored.completion_ids.size());
    } else {
      differences.push_back(describe_difference(stored, *it->second));
    }
  }
  fmt::print("replay of {}: {} of {} sampled requests reproduced token for token ({} tokens)\n",
             contents.file.string(), equal, rows.size(), tokens);
  for (const auto& d : differences) fmt::print("  {}\n", d);
  return static_cast<int>(differences.empty() ? ExitCode::kDone : ExitCode::kRankFailure);
}

}  // namespace

int replay_job(MpiEnv& mpi, const JobReplayOptions& options) {
  install_signal_handlers();
  const HostComm world = HostComm::world();
  const bool root = world.rank() == 0;
  StepBeacon beacon;

  ResultContents contents;
  std::string yaml;
  world.together([&] {
    if (!root) return;
    contents = read_result(options.file, {.tokens = true});
    yaml = contents.passport.text("job.config_yaml");
  });
  const SharedJob shared = share_job_text(world, yaml, options.file, options.overrides);
  const JobConfig& job = shared.job.config;
  const RankLayout layout = agree_rank_layout(world, job.parallel);
  RankGuardOptions guard_options;
  guard_options.stall_timeout_s = job.run.stall_timeout_s;
  RankGuard guard(world, beacon, std::move(guard_options));
  try {
    const auto files =
        world.together([&] { return std::make_unique<ModelFiles>(open_model_files(job.model)); });
    require_same_identity(world, layout, identity_facts(*files, shared.job.resolved_yaml));
    const auto limits = world.together([&] { return resolve_limits(job, files->config); });
    const auto prompts = share_prompts(world, job, *files, limits, BadPrompts::kSkip);

    std::vector<std::size_t> rows;
    std::vector<int> wanted;
    world.together([&] {
      if (!root) return;
      require_same_inputs(contents,
                          {.job = shared.job,
                           .files = *files,
                           .layout = layout,
                           .limits = limits,
                           .requests = prompts.requests,
                           .prompt_file_sha256 = prompts.sha256},
                          options.file);
      rows = choose(finished_rows(contents), options.sample, options.seed);
      for (const auto row : rows) {
        const auto same_id = [&](const Request& r) { return r.id == contents.requests[row].id; };
        const auto it = std::find_if(prompts.requests.begin(), prompts.requests.end(), same_id);
        wanted.push_back(static_cast<int>(it - prompts.requests.begin()));
      }
    });
    world.bcast(wanted);

    RankEngine parts({.job = job,
                      .files = *files,
                      .world = world,
                      .layout = layout,
                      .beacon = beacon,
                      .on_phase = {},
                      .on_load = {}});
    CollectingSink sink;
    Engine engine(
        {.backend = parts.backend(),
         .comm = parts.comm(),
         .group = parts.group(),
         .beacon = beacon,
         .program = parts.program(),
         .tokenizer = files->tokenizer,
         .sink = root ? &sink : nullptr,
         .stop_reason =
             [] { return stop_requested() ? StopReason::kInterrupted : StopReason::kNone; },
         .on_status = {},
         .on_round = {}},
        {.limits = parts.plan().limits,
         .sample = {},
         .store_text = false,
         .store_steps = false,
         .stop_ids = files->config.stop_ids,
         .clear_cache_between_groups = true,
         .time_zero_s = monotonic_s()});
    std::vector<const Request*> requests;
    for (const int i : wanted) requests.push_back(&prompts.requests[static_cast<std::size_t>(i)]);
    StopReason stop = StopReason::kNone;
    guard.begin_watch();
    if (!requests.empty()) {
      stop = engine.run_group({.concurrency = job.scheduler.max_sequences}, requests);
    }
    guard.end_watch();

    int code = static_cast<int>(ExitCode::kInterrupted);
    if (stop == StopReason::kNone && root) code = compare(contents, rows, sink.records);
    world.bcast(code);
    guard.goodbye();
    return code;
  } catch (const Error& error) {
    if (error.scope() == ErrorScope::kAllRanks) {
      guard.goodbye();
      throw;
    }
    mpi.abandon();
    guard.fail(error);
  }
}

}  // namespace tandem
