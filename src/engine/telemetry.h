// Memory samples of every rank into rank 0's result file: each rank's watchdog thread hands them
// over, other ranks' travel over the rank guard's connections, outside MPI.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "engine/engine.h"
#include "memory/watchdog.h"
#include "output/records.h"

namespace tandem {

// Message kinds on the guard's telemetry path.
inline constexpr std::uint32_t kMemoryRowMessage = 1;
inline constexpr std::uint32_t kPowerRowMessage = 2;

class Telemetry {
 public:
  // `deliver` takes a sample of this rank; called on the watchdog's thread. The watchdog stops the
  // job through stop_reason() when memory runs out. device_bytes: what the backend holds.
  Telemetry(int rank, std::int64_t reserve_bytes, double time_zero_s,
            std::function<void(const MemoryRow&)> deliver);

  void enter_phase(const std::string& phase);
  void set_device_bytes(std::int64_t bytes) { device_bytes_ = bytes; }
  // kMemory once the watchdog has asked for a stop.
  StopReason stop_reason() const { return stop_ ? StopReason::kMemory : StopReason::kNone; }
  // "load 1.2 GiB available at the lowest, peak 300 MiB resident; ...": for the log and the
  // passport.
  std::string lows_text() const;

 private:
  int rank_;
  double time_zero_s_;
  std::function<void(const MemoryRow&)> deliver_;
  std::atomic<std::int64_t> device_bytes_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // guards phase_
  std::string phase_ = "start";
  std::unique_ptr<MemoryWatchdog> watchdog_;
};

}  // namespace tandem
