// Follows the host's memory while the job runs and speaks up before it runs out: on a
// unified-memory box exhaustion freezes the machine instead of failing an allocation. Keeps the
// lowest values of each phase. What to do about a warning or a stop is the caller's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "memory/host_memory.h"

namespace tandem {

struct WatchdogLimits {
  // Of the smaller of MemAvailable and the cgroup's room.
  std::int64_t warn_bytes = std::int64_t{6} << 30;
  std::int64_t stop_bytes = std::int64_t{3} << 30;
  // MemFree: drivers fail on it while MemAvailable still looks well. 0: not watched.
  std::int64_t stop_free_bytes = std::int64_t{1} << 29;
  // Stop as well when the present slope reaches stop_bytes within this time.
  double stop_horizon_s = 3.0;
  // Share of time in which all tasks stalled on memory (PSI full), between two samples.
  double warn_stall_share = 0.10;
  double stop_stall_share = 0.50;
  // Swap written out since the start of the watch.
  std::int64_t warn_swap_bytes = std::int64_t{256} << 20;

  // Fractions of the reserve the user left to the system, so that small test machines and large
  // boxes need no settings of their own.
  static WatchdogLimits for_reserve(std::int64_t reserve_bytes);
};

enum class MemoryVerdict { kFine, kWarn, kStop };

// Lowest values seen in a phase: "load", "kernels", "kv", "first_prefill", "steady".
struct PhaseLow {
  std::string phase;
  Reading available_bytes, free_bytes;
  Reading peak_rss_bytes;  // highest
};

// The judgement alone, without thread and clock.
class MemoryJudge {
 public:
  explicit MemoryJudge(WatchdogLimits limits);
  // reason: filled for kWarn and kStop, with numbers.
  MemoryVerdict judge(const MemorySample& sample, std::string& reason);

 private:
  WatchdogLimits limits_;
  std::vector<MemorySample> recent_;  // the last few seconds, oldest first
  Reading swap_used_at_start_;
};

struct WatchdogCallbacks {
  std::function<void(const std::string& reason)> on_warn;  // once per crossing
  std::function<void(const std::string& reason)> on_stop;  // once
  std::function<void(const MemorySample&)> on_sample;      // about once a second
};

class MemoryWatchdog {
 public:
  using Reader = std::function<MemorySample()>;

  // Callbacks run on the watchdog's thread. Reads every period_s, more often than samples are
  // passed on: a collapse takes seconds.
  MemoryWatchdog(WatchdogLimits limits, Reader reader, WatchdogCallbacks callbacks,
                 double period_s = 0.25);
  ~MemoryWatchdog();
  MemoryWatchdog(const MemoryWatchdog&) = delete;
  MemoryWatchdog& operator=(const MemoryWatchdog&) = delete;

  // Starts a phase; the values so far belong to the one before.
  void enter_phase(std::string name);
  std::vector<PhaseLow> lows() const;

 private:
  class Worker;
  std::unique_ptr<Worker> worker_;
};

}  // namespace tandem
