#include "memory/watchdog.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"

namespace tandem {
namespace {

constexpr double kSlopeWindow_s = 3.0;
// A slope needs some time to mean anything: one large allocation is no trend.
constexpr double kMinSlopeWindow_s = 1.0;
constexpr double kSamplePeriod_s = 1.0;

// The room left to this process: the host's, or its cgroup's if smaller.
Reading room_of(const MemorySample& sample) {
  Reading room = sample.host.available;
  if (sample.cgroup.limit && sample.cgroup.usage) {
    const auto below_limit = *sample.cgroup.limit - *sample.cgroup.usage;
    if (!room || below_limit < *room) room = Reading::of(below_limit);
  }
  return room;
}

Reading swap_used(const MemorySample& sample) {
  if (!sample.host.swap_total) return sample.host.swap_total;
  if (!sample.host.swap_free) return sample.host.swap_free;
  return Reading::of(*sample.host.swap_total - *sample.host.swap_free);
}

void keep_lowest(Reading& low, const Reading& value) {
  if (!value) {
    if (!low) low.reason = value.reason;
  } else if (!low || *value < *low) {
    low = value;
  }
}

void keep_highest(Reading& high, const Reading& value) {
  if (!value) {
    if (!high) high.reason = value.reason;
  } else if (!high || *value > *high) {
    high = value;
  }
}

}  // namespace

WatchdogLimits WatchdogLimits::for_reserve(std::int64_t reserve_bytes) {
  WatchdogLimits limits;
  limits.warn_bytes = reserve_bytes / 2;
  limits.stop_bytes = reserve_bytes / 4;
  limits.stop_free_bytes = std::min(limits.stop_free_bytes, reserve_bytes / 24);
  return limits;
}

MemoryJudge::MemoryJudge(WatchdogLimits limits) : limits_(limits) {}

MemoryVerdict MemoryJudge::judge(const MemorySample& sample, std::string& reason) {
  if (recent_.empty()) swap_used_at_start_ = swap_used(sample);
  recent_.push_back(sample);
  std::erase_if(recent_,
                [&](const MemorySample& s) { return sample.time_s - s.time_s > kSlopeWindow_s; });
  const MemorySample& oldest = recent_.front();
  const double span_s = sample.time_s - oldest.time_s;

  const Reading room = room_of(sample);
  const Reading old_room = room_of(oldest);
  const Reading swapped = swap_used(sample);
  std::vector<std::string> stops;
  std::vector<std::string> warnings;

  if (room) {
    if (*room < limits_.stop_bytes) {
      stops.push_back(fmt::format("{} available, limit {}", format_bytes(*room),
                                  format_bytes(limits_.stop_bytes)));
    } else if (*room < limits_.warn_bytes) {
      warnings.push_back(fmt::format("{} available, warning below {}", format_bytes(*room),
                                     format_bytes(limits_.warn_bytes)));
    }
    if (old_room && span_s >= kMinSlopeWindow_s && *room < limits_.warn_bytes) {
      const double fall = static_cast<double>(*old_room - *room) / span_s;  // bytes/s
      const double until_stop_s = static_cast<double>(*room - limits_.stop_bytes) / fall;
      if (fall > 0 && until_stop_s < limits_.stop_horizon_s) {
        stops.push_back(fmt::format("{} available, falling by {} a second", format_bytes(*room),
                                    format_bytes(static_cast<std::int64_t>(fall))));
      }
    }
  }
  // MemFree alone says little while the page cache holds the rest; below both it says that the
  // kernel does not get memory back fast enough.
  if (sample.host.free && room && *sample.host.free < limits_.stop_free_bytes &&
      *room < limits_.warn_bytes) {
    stops.push_back(fmt::format("{} free", format_bytes(*sample.host.free)));
  }
  if (sample.pressure.full_us && oldest.pressure.full_us && span_s >= kMinSlopeWindow_s) {
    const double share =
        static_cast<double>(*sample.pressure.full_us - *oldest.pressure.full_us) * 1e-6 / span_s;
    const auto text =
        fmt::format("all tasks wait for memory {:.0f} % of the time (PSI)", 100 * share);
    if (share > limits_.stop_stall_share) {
      stops.push_back(text);
    } else if (share > limits_.warn_stall_share) {
      warnings.push_back(text);
    }
  }
  if (swapped && swap_used_at_start_ && *swapped - *swap_used_at_start_ > limits_.warn_swap_bytes) {
    warnings.push_back(fmt::format("{} swapped out since the start",
                                   format_bytes(*swapped - *swap_used_at_start_)));
  }

  const auto& said = stops.empty() ? warnings : stops;
  reason = fmt::format("{}", fmt::join(said, "; "));
  if (!stops.empty()) return MemoryVerdict::kStop;
  return warnings.empty() ? MemoryVerdict::kFine : MemoryVerdict::kWarn;
}

class MemoryWatchdog::Worker {
 public:
  Worker(WatchdogLimits limits, Reader reader, WatchdogCallbacks callbacks, double period_s)
      : judge_(limits),
        reader_(std::move(reader)),
        callbacks_(std::move(callbacks)),
        period_(period_s),
        thread_([this] { run(); }) {}

  ~Worker() {
    {
      const std::scoped_lock lock(mutex_);
      ending_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  void enter_phase(std::string name) {
    const MemorySample sample = reader_();  // even the shortest phase has a value
    const std::scoped_lock lock(mutex_);
    lows_.push_back(
        {.phase = std::move(name), .available_bytes = {}, .free_bytes = {}, .peak_rss_bytes = {}});
    note(sample);
  }

  std::vector<PhaseLow> lows() {
    const std::scoped_lock lock(mutex_);
    return lows_;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!ending_) {
      lock.unlock();
      try {
        look();
      } catch (const std::exception& e) {
        if (!complained_) log_warning("memory watchdog: {}", e.what());
        complained_ = true;
      }
      lock.lock();
      wake_.wait_for(lock, std::chrono::duration<double>(period_), [this] { return ending_; });
    }
  }

  void look() {
    const MemorySample sample = reader_();
    {
      const std::scoped_lock lock(mutex_);
      note(sample);
    }
    std::string reason;
    const MemoryVerdict verdict = judge_.judge(sample, reason);
    if (verdict == MemoryVerdict::kWarn && last_ == MemoryVerdict::kFine && callbacks_.on_warn) {
      callbacks_.on_warn(reason);
    }
    if (verdict == MemoryVerdict::kStop && !stopped_) {
      stopped_ = true;
      if (callbacks_.on_stop) callbacks_.on_stop(reason);
    }
    last_ = verdict;
    if (callbacks_.on_sample &&
        (!last_sample_s_ || sample.time_s - *last_sample_s_ >= kSamplePeriod_s)) {
      last_sample_s_ = sample.time_s;
      callbacks_.on_sample(sample);
    }
  }

  // Holding mutex_.
  void note(const MemorySample& sample) {
    if (lows_.empty()) return;
    auto& low = lows_.back();
    keep_lowest(low.available_bytes, sample.host.available);
    keep_lowest(low.free_bytes, sample.host.free);
    keep_highest(low.peak_rss_bytes, sample.process.rss_bytes);
  }

  // The watchdog thread's own.
  MemoryJudge judge_;
  MemoryVerdict last_ = MemoryVerdict::kFine;
  bool stopped_ = false;
  bool complained_ = false;
  std::optional<double> last_sample_s_;

  Reader reader_;
  WatchdogCallbacks callbacks_;
  double period_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<PhaseLow> lows_;
  bool ending_ = false;
  std::thread thread_;  // last: it uses everything above
};

MemoryWatchdog::MemoryWatchdog(WatchdogLimits limits, Reader reader, WatchdogCallbacks callbacks,
                               double period_s)
    : worker_(std::make_unique<Worker>(limits, std::move(reader), std::move(callbacks), period_s)) {
}
MemoryWatchdog::~MemoryWatchdog() = default;
void MemoryWatchdog::enter_phase(std::string name) { worker_->enter_phase(std::move(name)); }
std::vector<PhaseLow> MemoryWatchdog::lows() const { return worker_->lows(); }

}  // namespace tandem
