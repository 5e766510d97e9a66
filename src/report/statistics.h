// What a report says about a result, as numbers: the summary with the conditions it was made under,
// acceptance by draft position, where the step time went, what went wrong. No formatting here.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "output/records.h"
#include "output/result_reader.h"

namespace tandem {

// Smallest, median and largest of a set of token counts.
struct LengthRange {
  std::int64_t min = 0;
  std::int64_t median = 0;
  std::int64_t max = 0;
};

// A line of the summary and what its numbers depend on.
struct LevelReport {
  SummaryRow summary;
  std::optional<LengthRange> prompt_tokens;      // missing without rows
  std::optional<LengthRange> completion_tokens;  // of rows that did not fail
  std::int64_t warm_requests = 0;
  std::int64_t slow_machine_requests = 0;
};

struct DraftPosition {
  std::int64_t proposed = 0;
  std::int64_t accepted = 0;
};

// Seconds over all counted steps of one kind on rank 0; parts that no step recorded are missing.
struct StepSplit {
  std::int64_t steps = 0;
  double duration_s = 0;
  std::optional<double> host_prepare_s;
  std::optional<double> device_compute_s;
  std::optional<double> collective_s;
  std::optional<double> sample_verify_s;
  std::optional<double> wait_device_s;
  std::optional<double> wait_rank_s;
};

struct ResultReport {
  std::string file;
  Passport passport;
  std::vector<SessionRow> sessions;
  std::int64_t num_prompts = 0;
  std::int64_t num_rows = 0;
  std::int64_t warmup_rows = 0;
  std::vector<LevelReport> levels;
  std::vector<DraftPosition> acceptance;  // by draft position, warm-up left out
  std::map<StepKind, StepSplit> steps;
  std::map<std::string, std::int64_t> failures;  // error class -> rows
  std::optional<std::int64_t> lowest_available_bytes;
};

// `contents` read with steps and samples. The summary is computed from the rows, so a file whose
// last session was killed is reported like any other.
ResultReport make_report(const ResultContents& contents);

}  // namespace tandem
