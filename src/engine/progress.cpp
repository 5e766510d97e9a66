#include "engine/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "base/units.h"

namespace tandem {
namespace {

constexpr double kLinePeriod_s = 10.0;
constexpr double kBarPeriod_s = 0.2;
constexpr int kBarWidth = 24;

std::string bar(double share) {
  const int filled = std::clamp(static_cast<int>(share * kBarWidth), 0, kBarWidth);
  return "[" + std::string(static_cast<std::size_t>(filled), '#') +
         std::string(static_cast<std::size_t>(kBarWidth - filled), '.') + "]";
}

}  // namespace

ProgressMode detect_progress_mode(bool quiet) {
  if (quiet) return ProgressMode::kOff;
  return isatty(STDERR_FILENO) ? ProgressMode::kTerminal : ProgressMode::kLines;
}

Progress::Progress(ProgressMode mode, int num_groups) : mode_(mode), num_groups_(num_groups) {}

Progress::~Progress() {
  if (shown_width_ > 0) std::fputc('\n', stderr);
}

void Progress::loading(const LoadProgress& progress) {
  if (load_start_s_ == 0) load_start_s_ = monotonic_s();
  const double elapsed = std::max(1e-9, monotonic_s() - load_start_s_);
  const double done = static_cast<double>(progress.bytes_done);
  const double total = std::max(1.0, static_cast<double>(progress.bytes_total));
  show(fmt::format("{} loading {:.2f} of {:.2f} GB, {:.2f} GB/s",
                   mode_ == ProgressMode::kTerminal ? bar(done / total) : "", done / 1e9,
                   total / 1e9, done / 1e9 / elapsed),
       progress.bytes_done == progress.bytes_total);
}

void Progress::running(const EngineStatus& status) {
  const bool last = status.requests_done == status.requests_total;
  const double share = status.requests_total == 0 ? 1.0
                                                  : static_cast<double>(status.requests_done) /
                                                        static_cast<double>(status.requests_total);
  std::string text = status_line(status, num_groups_ - groups_done_ - 1);
  if (mode_ == ProgressMode::kTerminal) text = bar(share) + " " + text;
  show(text, last);
}

void Progress::end_group() { ++groups_done_; }

void Progress::show(const std::string& text, bool last) {
  if (mode_ == ProgressMode::kOff) return;
  const double now = monotonic_s();
  const double period = mode_ == ProgressMode::kTerminal ? kBarPeriod_s : kLinePeriod_s;
  if (!last && last_shown_s_ != 0 && now - last_shown_s_ < period) return;
  last_shown_s_ = now;
  if (mode_ == ProgressMode::kLines) {
    std::fprintf(stderr, "tandem: %s\n", text.c_str());
    return;
  }
  // Overwrites what is left of a longer line.
  const std::size_t padding = shown_width_ > text.size() ? shown_width_ - text.size() : 0;
  std::fprintf(stderr, "\r%s%s", text.c_str(), std::string(padding, ' ').c_str());
  shown_width_ = text.size();
  if (last) {
    std::fputc('\n', stderr);
    shown_width_ = 0;
  }
  std::fflush(stderr);
}

std::string status_line(const EngineStatus& status, int groups_left) {
  const double seconds = std::max(1e-9, status.group_seconds);
  std::string out = fmt::format(
      "concurrency {}{}: {}/{} requests  {:.1f} tok/s  {} running  {} waiting  KV {:.0f}%",
      status.group->concurrency, status.group->warmup ? " (warm-up)" : "", status.requests_done,
      status.requests_total, static_cast<double>(status.output_tokens) / seconds, status.running,
      status.waiting,
      status.num_pages == 0 ? 0.0
                            : 100.0 * static_cast<double>(status.pages_in_use) /
                                  static_cast<double>(status.num_pages));
  if (status.drafted > 0) {
    out += fmt::format("  acceptance {:.2f}",
                       static_cast<double>(status.accepted) / static_cast<double>(status.drafted));
  }
  // The runs still to come are taken to last as long as this one, which is an estimate and no more.
  if (status.requests_done > 0) {
    const double per_request = seconds / static_cast<double>(status.requests_done);
    const double left =
        per_request * (static_cast<double>(status.requests_total - status.requests_done) +
                       static_cast<double>(status.requests_total) * groups_left);
    out += "  ETA " + format_duration(left);
  }
  return out;
}

}  // namespace tandem
