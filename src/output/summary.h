// The numbers of /summary, from rows alone: plain functions without HDF5, used by the writer at the
// end of a session and by the report for files that never saw their end.
//
// Rules. Warm-up rows are left out. Aggregate tokens/s is all completion tokens over the wall time
// of the runs (GroupRecord); a run without end_s, cut off by a kill, lasts until its last recorded
// token. A request's tokens that one step made (a speculative round) share the time since its
// step before equally, so inter-token latency is per token, not per chunk. Percentiles are
// nearest-rank. What has no events behind it is missing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "output/records.h"

namespace tandem {

// Times of all completion tokens: those of row r are times[offsets[r] .. offsets[r + 1]).
struct TokenTimes {
  std::span<const std::int64_t> offsets;  // [rows + 1]
  std::span<const double> times;
  std::span<const std::int64_t> steps;  // that made them
};

// One row per level and cache state over all sessions; with several sessions also one for each.
std::vector<SummaryRow> summarize(std::span<const RequestRow> rows,
                                  std::span<const GroupRecord> groups, const TokenTimes& tokens);

// Nearest-rank percentile, `share` in (0, 1]; missing for no values. Reorders `values`.
std::optional<double> percentile(std::vector<double>& values, double share);
std::optional<double> mean(std::span<const double> values);

// Appends the latency of each token but those of the first step.
void append_token_gaps(std::span<const double> times, std::span<const std::int64_t> steps,
                       std::vector<double>& gaps);

}  // namespace tandem
