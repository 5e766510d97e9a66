#include "memory/budget.h"

#include <algorithm>

#include "base/error.h"
#include "base/units.h"

namespace tandem {
namespace {

bool counts(const MemoryPart& part) { return part.name != kProcessPart; }

std::string line(std::string_view label, std::string_view value, std::string_view note = "") {
  return fmt::format("  {:<36} {:>12}{}{}\n", label, value, note.empty() ? "" : "  ", note);
}

}  // namespace

std::int64_t RankPlan::steady_bytes() const {
  std::int64_t sum = 0;
  for (const auto& part : parts) sum += counts(part) ? part.bytes : 0;
  return sum;
}

std::int64_t RankPlan::load_peak_bytes() const {
  std::int64_t sum = load_transient_bytes;
  for (const auto& part : parts) {
    const bool loaded =
        std::find(loaded_parts.begin(), loaded_parts.end(), part.name) != loaded_parts.end();
    if (loaded && counts(part)) sum += part.bytes;
  }
  return sum;
}

std::int64_t RankPlan::needed_bytes() const { return std::max(steady_bytes(), load_peak_bytes()); }

std::int64_t HostBudget::per_rank_bytes() const {
  return std::max<std::int64_t>(available_bytes - reserve_bytes, 0) / std::max(ranks_on_host, 1);
}

HostBudget host_budget(const MemorySample& sample, std::string host, std::int64_t reserve_bytes,
                       int ranks_on_host) {
  if (!sample.host.available) {
    throw Error(ExitCode::kInternal,
                {.what = "the amount of free memory is not known: " + sample.host.available.reason,
                 .where = host,
                 .expected = "MemAvailable in /proc/meminfo"});
  }
  HostBudget budget{.host = std::move(host),
                    .available_bytes = *sample.host.available,
                    .limited_by = "MemAvailable",
                    .reserve_bytes = reserve_bytes,
                    .ranks_on_host = ranks_on_host};
  if (sample.cgroup.limit && sample.cgroup.usage) {
    const auto room = std::max<std::int64_t>(*sample.cgroup.limit - *sample.cgroup.usage, 0);
    if (room < budget.available_bytes) {
      budget.available_bytes = room;
      budget.limited_by = "cgroup limit";
    }
  }
  return budget;
}

MemoryPart process_baseline(const ProcessMemory& process) {
  return {.name = kProcessPart, .bytes = process.rss_bytes ? *process.rss_bytes : 0};
}

std::int64_t bytes_left(const RankPlan& plan, const HostBudget& budget) {
  return budget.per_rank_bytes() - plan.needed_bytes();
}

void require_fit(const RankPlan& plan, const HostBudget& budget) {
  const std::int64_t left = bytes_left(plan, budget);
  if (left >= 0) return;
  const std::int64_t missing = -left;

  std::vector<std::string> knobs;
  for (const auto& knob : plan.knobs) {
    auto text = fmt::format("{}: {} -> {}", knob.key, knob.current, knob.suggestion);
    if (knob.saves_bytes > 0) {
      text += fmt::format(" (saves {}{})", format_bytes(knob.saves_bytes),
                          knob.saves_bytes >= missing ? ", enough alone" : "");
    }
    knobs.push_back(std::move(text));
  }
  const std::string more_ranks = "use more ranks on more hosts";
  throw Error(
      ExitCode::kDoesNotFit,
      {.what = fmt::format("{} per rank needed, {} to be had, {} missing",
                           format_bytes(plan.needed_bytes()), format_bytes(budget.per_rank_bytes()),
                           format_bytes(missing)),
       .where = fmt::format("memory of rank {} on {}", plan.rank, budget.host),
       .remedy = fmt::format("{}\n{}",
                             knobs.empty() ? more_ranks
                                           : fmt::format("change one or more of\n  {}\nor {}",
                                                         fmt::join(knobs, "\n  "), more_ranks),
                             render_plan(plan, budget))});
}

std::string render_plan(const RankPlan& plan, const HostBudget& budget) {
  std::string text = fmt::format("rank {} on {}\n", plan.rank, budget.host);
  const auto steady = static_cast<double>(std::max<std::int64_t>(plan.steady_bytes(), 1));
  for (const auto& part : plan.parts) {
    text += counts(part)
                ? line(part.name, format_bytes(part.bytes),
                       fmt::format("{:5.1f} %", 100.0 * static_cast<double>(part.bytes) / steady))
                : line(part.name, format_bytes(part.bytes), "held already");
  }
  const auto peak = plan.load_peak_bytes();
  const auto budget_bytes = budget.per_rank_bytes();
  text += line("steady state", format_bytes(plan.steady_bytes()));
  text += line("load peak", format_bytes(peak),
               fmt::format("of it {} for reading", format_bytes(plan.load_transient_bytes)));
  text += line("budget per rank", format_bytes(budget_bytes),
               fmt::format("({} {} - reserve {}) / {} rank{} on this host", budget.limited_by,
                           format_bytes(budget.available_bytes), format_bytes(budget.reserve_bytes),
                           budget.ranks_on_host, budget.ranks_on_host == 1 ? "" : "s"));
  const auto left = bytes_left(plan, budget);
  text += line(left >= 0 ? "left" : "missing", format_bytes(left >= 0 ? left : -left));
  return text;
}

}  // namespace tandem
