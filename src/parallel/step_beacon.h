// What a rank is doing right now, in words, readable by its guard thread while the main thread is
// blocked. Written by the step loop and by the collectives.
#pragma once

#include <atomic>
#include <cstdint>

namespace tandem {

struct StepBeacon {
  std::atomic<std::uint64_t> step{0};           // engine steps finished
  std::atomic<const char*> operation{"start"};  // static text
  // The operation ends when other ranks do their part: if a job stalls, look for the rank that does
  // not wait for others.
  std::atomic<bool> waits_for_peers{false};
};

enum class WaitsForPeers { kNo, kYes };

// Names the operation for the time of a scope.
class BeaconScope {
 public:
  BeaconScope(StepBeacon* beacon, const char* operation, WaitsForPeers waits) : beacon_(beacon) {
    if (beacon_ == nullptr) return;
    operation_ = beacon_->operation.exchange(operation, std::memory_order_relaxed);
    waits_ =
        beacon_->waits_for_peers.exchange(waits == WaitsForPeers::kYes, std::memory_order_relaxed);
  }
  ~BeaconScope() {
    if (beacon_ == nullptr) return;
    beacon_->operation.store(operation_, std::memory_order_relaxed);
    beacon_->waits_for_peers.store(waits_, std::memory_order_relaxed);
  }
  BeaconScope(const BeaconScope&) = delete;
  BeaconScope& operator=(const BeaconScope&) = delete;

 private:
  StepBeacon* beacon_;
  const char* operation_ = nullptr;
  bool waits_ = false;
};

}  // namespace tandem
