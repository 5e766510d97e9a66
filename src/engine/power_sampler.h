// Rows of /power: what the device says about itself and what the host's network interfaces have
// moved, about once a second, on a thread of its own: a driver that does not answer must hold up
// neither the job nor the memory watchdog.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "kernels/device_sensors.h"
#include "output/records.h"

namespace tandem {

// Of all interfaces but the loopback, since boot. RDMA traffic passes by these counters.
struct NetworkBytes {
  std::int64_t received = 0;
  std::int64_t sent = 0;
};
// Text of /proc/net/dev; empty if it is not that.
std::optional<NetworkBytes> parse_network_bytes(std::string_view text);

class PowerSampler {
 public:
  // `deliver` takes a sample of this rank; called on the sampler's thread.
  PowerSampler(int rank, double time_zero_s, std::function<void(const PowerSample&)> deliver,
               double period_s = 1.0);
  // Waits for a reading that is under way.
  ~PowerSampler();
  PowerSampler(const PowerSampler&) = delete;
  PowerSampler& operator=(const PowerSampler&) = delete;

  // From now on rows have the device's readings. nullptr: there are none, and `why` is logged. Each
  // reading that is missing is logged once, with its reason.
  void watch(std::unique_ptr<DeviceSensors> sensors, const std::string& why);

 private:
  void run();
  PowerSample sample();
  void read_device(PowerSample& row);

  int rank_;
  double time_zero_s_;
  double period_s_;
  std::function<void(const PowerSample&)> deliver_;
  std::mutex mutex_;  // guards stop_ and sensors_
  std::condition_variable wake_;
  bool stop_ = false;
  std::shared_ptr<DeviceSensors> sensors_;
  std::set<std::string> told_;  // missing readings that were logged; the thread's own
  std::thread thread_;
};

}  // namespace tandem
