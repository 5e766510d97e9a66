#include "output/record_checks.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "output/result_schema.h"

namespace tandem {
namespace {

// No column may carry NaN or infinity: what is not known is missing.
template <class Row>
void check_finite(const Table<Row>& table, const Row& row) {
  for (const auto& column : table.columns) {
    if (const auto* number = std::get_if<double Row::*>(&column.member)) {
      TANDEM_CHECK(std::isfinite(row.**number), "{}/{}", table.group, column.name);
    } else if (const auto* maybe = std::get_if<std::optional<double> Row::*>(&column.member)) {
      const auto& value = row.**maybe;
      TANDEM_CHECK(!value || std::isfinite(*value), "{}/{}", table.group, column.name);
    }
  }
}

void check_lengths(const RequestRecord& r) {
  const auto n = r.completion_ids.size();
  TANDEM_CHECK(r.token_times_s.size() == n, "request {}: {} times of {} tokens", r.id,
               r.token_times_s.size(), n);
  TANDEM_CHECK(r.token_steps.size() == n, "request {}: {} steps of {} tokens", r.id,
               r.token_steps.size(), n);
  TANDEM_CHECK(r.logprobs.empty() || r.logprobs.size() == n, "request {}: {} of {} tokens", r.id,
               r.logprobs.size(), n);
  TANDEM_CHECK(r.logit_hashes.empty() || r.logit_hashes.size() == n, "request {}: {} of {} tokens",
               r.id, r.logit_hashes.size(), n);
  TANDEM_CHECK(std::is_sorted(r.token_times_s.begin(), r.token_times_s.end()),
               "request {}: token times go backwards", r.id);
  TANDEM_CHECK(std::is_sorted(r.token_steps.begin(), r.token_steps.end()),
               "request {}: token steps go backwards", r.id);
  const auto finite = [](double x) { return std::isfinite(x); };
  TANDEM_CHECK(std::all_of(r.token_times_s.begin(), r.token_times_s.end(), finite), "request {}",
               r.id);
  TANDEM_CHECK(std::all_of(r.logprobs.begin(), r.logprobs.end(), finite), "request {}", r.id);
}

void check_acceptance(const RequestRecord& r) {
  TANDEM_CHECK(r.draft_proposed.size() == r.draft_accepted.size(), "request {}: {} and {}", r.id,
               r.draft_proposed.size(), r.draft_accepted.size());
  for (std::size_t i = 0; i < r.draft_proposed.size(); ++i) {
    TANDEM_CHECK(0 <= r.draft_accepted[i] && r.draft_accepted[i] <= r.draft_proposed[i],
                 "request {}: {} of {} drafts accepted at position {}", r.id, r.draft_accepted[i],
                 r.draft_proposed[i], i);
  }
}

void check_order(const RequestRecord& r) {
  std::optional<double> before;
  for (const auto& time : {r.arrival_s, r.scheduled_s, r.first_token_s, r.last_token_s}) {
    if (!time) continue;
    TANDEM_CHECK(!before || *before <= *time,
                 "request {}: arrival, scheduled, first and last token out of order", r.id);
    before = time;
  }
}

}  // namespace

void complete_and_check(RequestRecord& r) {
  TANDEM_CHECK(!r.id.empty());
  check_lengths(r);
  check_acceptance(r);
  if (!r.token_times_s.empty()) {
    if (!r.first_token_s) r.first_token_s = r.token_times_s.front();
    if (!r.last_token_s) r.last_token_s = r.token_times_s.back();
  }
  check_order(r);

  r.prompt_tokens = static_cast<std::int64_t>(r.prompt_ids.size());
  r.completion_tokens = static_cast<std::int64_t>(r.completion_ids.size());
  TANDEM_CHECK(0 <= r.cached_prompt_tokens && r.cached_prompt_tokens <= r.prompt_tokens,
               "request {}: {} of {} prompt tokens cached", r.id, r.cached_prompt_tokens,
               r.prompt_tokens);
  TANDEM_CHECK(0 <= r.thinking_tokens && r.thinking_tokens <= r.completion_tokens,
               "request {}: {} of {} tokens thinking", r.id, r.thinking_tokens,
               r.completion_tokens);
  r.answer_tokens = r.completion_tokens - r.thinking_tokens;
  r.warm = r.cached_prompt_tokens > 0;
  r.drafted_tokens =
      std::accumulate(r.draft_proposed.begin(), r.draft_proposed.end(), std::int64_t{0});
  r.accepted_tokens =
      std::accumulate(r.draft_accepted.begin(), r.draft_accepted.end(), std::int64_t{0});

  const auto difference = [](const std::optional<double>& from, const std::optional<double>& to) {
    return from && to ? std::optional<double>(*to - *from) : std::nullopt;
  };
  r.queue_s = difference(r.arrival_s, r.scheduled_s);
  r.ttft_s = difference(r.arrival_s, r.first_token_s);
  r.decode_tokens_per_s.reset();
  const auto decode_s = difference(r.first_token_s, r.last_token_s);
  if (r.completion_tokens > 1 && decode_s && *decode_s > 0) {
    r.decode_tokens_per_s = static_cast<double>(r.completion_tokens - 1) / *decode_s;
  }

  const bool failed =
      r.finish_reason == FinishReason::kError || r.finish_reason == FinishReason::kSkipped;
  TANDEM_CHECK(failed == !r.error_class.empty(), "request {}: finished by {} with error class '{}'",
               r.id, to_text(r.finish_reason), r.error_class);
  check_finite(schema::kRequests, static_cast<const RequestRow&>(r));
}

void check(const StepRecord& s) {
  TANDEM_CHECK(s.duration_s >= 0 && s.step >= 0 && s.rank >= 0, "step {}", s.step);
  TANDEM_CHECK(0 <= s.accepted_tokens && s.accepted_tokens <= s.draft_tokens,
               "step {}: {} of {} drafts accepted", s.step, s.accepted_tokens, s.draft_tokens);
  TANDEM_CHECK(s.sequences >= 0 && s.prompt_tokens >= 0 && s.output_tokens >= 0, "step {}", s.step);
  check_finite(schema::kSteps, s);
}

void check(const MemoryRow& sample) { check_finite(schema::kMemory, sample); }
void check(const PowerSample& sample) { check_finite(schema::kPower, sample); }
void check(const CanaryRecord& record) { check_finite(schema::kCanary, record); }

void check(const GroupRecord& group) {
  check_finite(schema::kGroups, group);
  TANDEM_CHECK(!group.end_s || group.start_s <= *group.end_s, "concurrency {}, run {}",
               group.concurrency, group.run_index);
}

}  // namespace tandem
