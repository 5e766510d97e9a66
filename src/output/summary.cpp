#include "output/summary.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>

#include "base/error.h"

namespace tandem {
namespace {

struct RunKey {
  std::int64_t session;
  std::int64_t concurrency;
  std::int64_t run_index;

  auto operator<=>(const RunKey&) const = default;
};

// Wall time of each counted run of each session, as far as it is known.
std::map<RunKey, double> run_walls(std::span<const RequestRow> rows,
                                   std::span<const GroupRecord> groups) {
  std::map<RunKey, double> last_token;
  for (const auto& row : rows) {
    if (row.warmup || !row.last_token_s) continue;
    auto& last = last_token[{row.session, row.concurrency, row.run_index}];
    last = std::max(last, *row.last_token_s);
  }
  std::map<RunKey, double> walls;
  for (const auto& group : groups) {
    if (group.warmup) continue;
    const RunKey key{group.session, group.concurrency, group.run_index};
    if (group.end_s) {
      walls[key] = *group.end_s - group.start_s;
    } else if (const auto found = last_token.find(key); found != last_token.end()) {
      walls[key] = found->second - group.start_s;
    }
  }
  return walls;
}

bool failed(const RequestRow& row) {
  return row.finish_reason != FinishReason::kStop && row.finish_reason != FinishReason::kLength;
}

std::optional<double> ratio(double numerator, double denominator) {
  return denominator > 0 ? std::optional<double>(numerator / denominator) : std::nullopt;
}

// Rows of one level, one cache state and one session (0: all).
struct Selection {
  std::int64_t concurrency;
  std::int64_t session;
  std::string cache;

  bool takes(const RequestRow& row) const {
    return !row.warmup && row.concurrency == concurrency &&
           (session == 0 || row.session == session) &&
           (cache == "all" || row.warm == (cache == "warm"));
  }
};

void add_speeds(SummaryRow& out, const std::map<RunKey, double>& walls,
                const std::map<RunKey, std::int64_t>& run_tokens) {
  // A run that was interrupted and resumed is one run: its tokens and its times add up.
  std::map<std::int64_t, std::pair<double, double>> runs;  // run index -> tokens, wall
  bool all_known = !run_tokens.empty();
  for (const auto& [key, tokens] : run_tokens) {
    const auto wall = walls.find(key);
    if (wall == walls.end()) {
      all_known = false;
      continue;
    }
    auto& run = runs[key.run_index];
    run.first += static_cast<double>(tokens);
    run.second += wall->second;
  }
  if (!all_known) return;  // tokens over part of the time would be too fast
  double wall_s = 0;
  for (const auto& [index, run] : runs) {
    wall_s += run.second;
    const auto speed = ratio(run.first, run.second);
    if (!speed || run.first == 0) continue;
    out.tokens_per_s_min = std::min(out.tokens_per_s_min.value_or(*speed), *speed);
    out.tokens_per_s_max = std::max(out.tokens_per_s_max.value_or(*speed), *speed);
  }
  out.wall_s = wall_s;
  if (out.completion_tokens > 0) {
    out.tokens_per_s = ratio(static_cast<double>(out.completion_tokens), wall_s);
  }
}

SummaryRow summarize_selection(const Selection& selection, std::span<const RequestRow> rows,
                               const std::map<RunKey, double>& walls, const TokenTimes& tokens) {
  SummaryRow out;
  out.concurrency = selection.concurrency;
  out.session = selection.session;
  out.cache = selection.cache;
  std::set<std::int64_t> runs;
  std::map<RunKey, std::int64_t> run_tokens;
  std::vector<double> decode_speeds;
  std::vector<double> ttfts;
  std::vector<double> gaps;
  std::int64_t rounds = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto& row = rows[i];
    if (!selection.takes(row)) continue;
    ++out.requests;
    runs.insert(row.run_index);
    run_tokens[{row.session, row.concurrency, row.run_index}] += row.completion_tokens;
    out.failed += failed(row) ? 1 : 0;
    out.prompt_tokens += row.prompt_tokens;
    out.completion_tokens += row.completion_tokens;
    out.drafted_tokens += row.drafted_tokens;
    out.accepted_tokens += row.accepted_tokens;
    rounds += row.draft_rounds;
    if (row.decode_tokens_per_s) decode_speeds.push_back(*row.decode_tokens_per_s);
    if (row.ttft_s) ttfts.push_back(*row.ttft_s);
    const auto begin = static_cast<std::size_t>(tokens.offsets[i]);
    const auto end = static_cast<std::size_t>(tokens.offsets[i + 1]);
    append_token_gaps(tokens.times.subspan(begin, end - begin),
                      tokens.steps.subspan(begin, end - begin), gaps);
  }
  out.runs = static_cast<std::int64_t>(runs.size());
  if (selection.cache == "all") add_speeds(out, walls, run_tokens);
  out.decode_tokens_per_s_mean = mean(decode_speeds);
  out.decode_tokens_per_s_p50 = percentile(decode_speeds, 0.50);
  out.decode_tokens_per_s_p5 = percentile(decode_speeds, 0.05);
  out.ttft_s_p50 = percentile(ttfts, 0.50);
  out.ttft_s_p95 = percentile(ttfts, 0.95);
  out.ttft_s_p99 = percentile(ttfts, 0.99);
  out.itl_s_p50 = percentile(gaps, 0.50);
  out.itl_s_p95 = percentile(gaps, 0.95);
  out.itl_s_p99 = percentile(gaps, 0.99);
  out.acceptance =
      ratio(static_cast<double>(out.accepted_tokens), static_cast<double>(out.drafted_tokens));
  if (rounds > 0) {
    out.tokens_per_round =
        1.0 + static_cast<double>(out.accepted_tokens) / static_cast<double>(rounds);
  }
  return out;
}

}  // namespace

std::optional<double> percentile(std::vector<double>& values, double share) {
  if (values.empty()) return std::nullopt;
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  const auto index = std::clamp<std::size_t>(rank, 1, values.size()) - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(index),
                   values.end());
  return values[index];
}

std::optional<double> mean(std::span<const double> values) {
  if (values.empty()) return std::nullopt;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

void append_token_gaps(std::span<const double> times, std::span<const std::int64_t> steps,
                       std::vector<double>& gaps) {
  TANDEM_CHECK(times.size() == steps.size(), "{} times, {} steps", times.size(), steps.size());
  // Ends of steps, not single tokens: the host stamps the tokens of a round microseconds apart.
  std::optional<double> before;
  std::size_t begin = 0;
  while (begin < times.size()) {
    std::size_t end = begin;
    while (end < times.size() && steps[end] == steps[begin]) ++end;
    const double now = times[end - 1];
    if (before) {
      const auto tokens = end - begin;
      gaps.insert(gaps.end(), tokens, (now - *before) / static_cast<double>(tokens));
    }
    before = now;
    begin = end;
  }
}

std::vector<SummaryRow> summarize(std::span<const RequestRow> rows,
                                  std::span<const GroupRecord> groups, const TokenTimes& tokens) {
  TANDEM_CHECK(tokens.offsets.size() == rows.size() + 1, "{} offsets of {} rows",
               tokens.offsets.size(), rows.size());
  std::set<std::int64_t> levels;
  std::set<std::int64_t> sessions;
  for (const auto& row : rows) {
    if (row.warmup) continue;
    levels.insert(row.concurrency);
    sessions.insert(row.session);
  }
  std::vector<std::int64_t> scopes{0};
  if (sessions.size() > 1) scopes.insert(scopes.end(), sessions.begin(), sessions.end());
  const auto walls = run_walls(rows, groups);
  std::vector<SummaryRow> summary;
  for (const auto level : levels) {
    for (const auto session : scopes) {
      for (const auto* cache : {"all", "cold", "warm"}) {
        auto row = summarize_selection({level, session, cache}, rows, walls, tokens);
        if (row.requests > 0) summary.push_back(std::move(row));
      }
    }
  }
  return summary;
}

}  // namespace tandem
