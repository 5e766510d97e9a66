#include "report/statistics.h"

#include <algorithm>

#include "output/columns.h"
#include "output/summary.h"

namespace tandem {
namespace {

std::optional<LengthRange> range_of(std::vector<std::int64_t> lengths) {
  if (lengths.empty()) return std::nullopt;
  std::sort(lengths.begin(), lengths.end());
  return LengthRange{
      .min = lengths.front(), .median = lengths[(lengths.size() - 1) / 2], .max = lengths.back()};
}

bool failed(const RequestRow& row) {
  return row.finish_reason != FinishReason::kStop && row.finish_reason != FinishReason::kLength;
}

LevelReport level_report(const SummaryRow& summary, const std::vector<RequestRow>& rows) {
  LevelReport level{.summary = summary, .prompt_tokens = {}, .completion_tokens = {}};
  std::vector<std::int64_t> prompts;
  std::vector<std::int64_t> completions;
  for (const auto& row : rows) {
    if (row.warmup || row.concurrency != summary.concurrency) continue;
    if (summary.session != 0 && row.session != summary.session) continue;
    if (summary.cache != "all" && row.warm != (summary.cache == "warm")) continue;
    prompts.push_back(row.prompt_tokens);
    if (!failed(row)) completions.push_back(row.completion_tokens);
    level.warm_requests += row.warm ? 1 : 0;
    level.slow_machine_requests += row.slow_machine ? 1 : 0;
  }
  level.prompt_tokens = range_of(std::move(prompts));
  level.completion_tokens = range_of(std::move(completions));
  return level;
}

std::vector<DraftPosition> acceptance_by_position(const std::vector<RequestRecord>& requests) {
  std::vector<DraftPosition> positions;
  for (const auto& request : requests) {
    if (request.warmup) continue;
    positions.resize(std::max(positions.size(), request.draft_proposed.size()));
    for (std::size_t i = 0; i < request.draft_proposed.size(); ++i) {
      positions[i].proposed += request.draft_proposed[i];
      positions[i].accepted += request.draft_accepted[i];
    }
  }
  while (!positions.empty() && positions.back().proposed == 0) positions.pop_back();
  return positions;
}

void add_part(std::optional<double>& total, const std::optional<double>& part) {
  if (part) total = total.value_or(0) + *part;
}

std::map<StepKind, StepSplit> split_steps(const std::vector<StepRecord>& steps) {
  std::map<StepKind, StepSplit> split;
  for (const auto& step : steps) {
    if (step.warmup || step.rank != 0) continue;
    auto& kind = split[step.kind];
    ++kind.steps;
    kind.duration_s += step.duration_s;
    add_part(kind.host_prepare_s, step.host_prepare_s);
    add_part(kind.device_compute_s, step.device_compute_s);
    add_part(kind.collective_s, step.collective_s);
    add_part(kind.sample_verify_s, step.sample_verify_s);
    add_part(kind.wait_device_s, step.wait_device_s);
    add_part(kind.wait_rank_s, step.wait_rank_s);
  }
  return split;
}

}  // namespace

ResultReport make_report(const ResultContents& contents) {
  ResultReport report;
  report.file = contents.file.string();
  report.passport = contents.passport;
  report.sessions = contents.sessions;
  report.num_prompts = static_cast<std::int64_t>(contents.facts.prompts.size());
  const auto rows = request_rows(contents);
  report.num_rows = static_cast<std::int64_t>(rows.size());
  for (const auto& row : rows) {
    report.warmup_rows += row.warmup ? 1 : 0;
    if (failed(row)) {
      const std::string name =
          row.error_class.empty() ? std::string(to_text(row.finish_reason)) : row.error_class;
      ++report.failures[name];
    }
  }
  const auto summary = summarize(rows, contents.groups,
                                 {.offsets = contents.token_offsets,
                                  .times = contents.token_times_s,
                                  .steps = contents.token_steps});
  for (const auto& row : summary) report.levels.push_back(level_report(row, rows));
  report.acceptance = acceptance_by_position(contents.requests);
  report.steps = split_steps(contents.steps);
  for (const auto& sample : contents.memory) {
    if (!sample.mem_available_bytes) continue;
    report.lowest_available_bytes =
        std::min(report.lowest_available_bytes.value_or(*sample.mem_available_bytes),
                 *sample.mem_available_bytes);
  }
  return report;
}

}  // namespace tandem
