// What a device says about itself while it works: power, clocks, temperature, how busy it is. For
// the result file; nothing is decided by it. And the versions of what drives it, for the passport.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace tandem {

// A reading that a device does not offer is empty, never 0. GB10 has no memory clock, for one.
struct DeviceReadings {
  std::optional<double> utilization_percent;
  std::optional<double> power_w;
  std::optional<double> sm_clock_hz;
  std::optional<double> memory_clock_hz;
  std::optional<double> temperature_c;
  std::vector<std::string> missing;  // "memory clock: Not Supported", one for each empty reading
};

class DeviceSensors {
 public:
  virtual ~DeviceSensors() = default;
  // By one thread at a time, any one. Never throws for what the driver answers.
  virtual DeviceReadings read() = 0;
  // "580.95.05"; empty where the driver does not say.
  virtual std::string driver_version() = 0;
};

// To be made by the thread that made the backend. On a CPU, and where the driver's library is
// missing, nullptr, and `why` says which.
std::unique_ptr<DeviceSensors> make_device_sensors(const Backend& backend, std::string& why);

// "CUDA 13.0, driver for CUDA 13.1", "CUDA 13.0, no driver", "not compiled in". Needs no device.
std::string device_library_text();

}  // namespace tandem
