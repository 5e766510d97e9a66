// DeviceSensors over NVML, the driver's management library.
#pragma once

#include <memory>
#include <string>

#include "kernels/device_sensors.h"

namespace tandem::cuda {

// Of the device that is current in the calling thread. nullptr, with the reason, where NVML is
// missing or does not know the device.
std::unique_ptr<DeviceSensors> make_nvml_sensors(std::string& why);
std::string cuda_version_text();

}  // namespace tandem::cuda
