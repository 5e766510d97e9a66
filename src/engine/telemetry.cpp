#include "engine/telemetry.h"

#include <algorithm>

#include "base/log.h"
#include "base/units.h"

namespace tandem {
namespace {

std::optional<std::int64_t> difference(const Reading& a, const Reading& b) {
  if (!a || !b) return std::nullopt;
  return *a - *b;
}

}  // namespace

Telemetry::Telemetry(int rank, std::int64_t reserve_bytes, double time_zero_s,
                     std::function<void(const MemoryRow&)> deliver)
    : rank_(rank), time_zero_s_(time_zero_s), deliver_(std::move(deliver)) {
  const auto on_sample = [this](const MemorySample& sample) {
    MemoryRow row;
    row.time_s = std::max(0.0, sample.time_s - time_zero_s_);
    row.rank = rank_;
    {
      const std::scoped_lock lock(mutex_);
      row.phase = phase_;
    }
    row.mem_available_bytes = sample.host.available.value;
    row.page_cache_bytes = sample.host.cached.value;
    row.swap_used_bytes = difference(sample.host.swap_total, sample.host.swap_free);
    row.rss_bytes = sample.process.rss_bytes.value;
    row.major_faults = sample.process.major_faults.value;
    row.disk_read_bytes = sample.process.disk_read_bytes.value;
    if (device_bytes_ > 0) row.device_in_use_bytes = device_bytes_.load();
    deliver_(row);
  };
  watchdog_ = std::make_unique<MemoryWatchdog>(
      WatchdogLimits::for_reserve(reserve_bytes),
      [sampler = MemorySampler()] { return sampler.sample(); },
      WatchdogCallbacks{
          .on_warn = [](const std::string& reason) { log_warning("memory: {}", reason); },
          .on_stop =
              [this](const std::string& reason) {
                log_error("memory: {}; stopping with the results saved", reason);
                stop_ = true;
              },
          .on_sample = on_sample});
}

void Telemetry::enter_phase(const std::string& phase) {
  {
    const std::scoped_lock lock(mutex_);
    phase_ = phase;
  }
  watchdog_->enter_phase(phase);
}

std::string Telemetry::lows_text() const {
  std::string out;
  for (const auto& low : watchdog_->lows()) {
    const auto text = [](const Reading& r) { return r ? format_bytes(*r) : "unknown"; };
    out += fmt::format("{}{}: lowest available {}, peak resident {}", out.empty() ? "" : "; ",
                       low.phase, text(low.available_bytes), text(low.peak_rss_bytes));
  }
  return out;
}

}  // namespace tandem
