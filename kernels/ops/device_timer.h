// Instruments: how long a device needs for work, by the device's own clock where it has one.
#pragma once

#include <functional>
#include <memory>

#include "kernels/backend.h"

namespace tandem::ops {

// How the work reaches a device. A host that enqueues calls one by one is slower than small
// kernels; captured, they follow each other without it. A CPU knows no difference.
enum class Submit { kOneByOne, kCaptured };

class DeviceTimer {
 public:
  virtual ~DeviceTimer() = default;
  // Seconds from the start of the first to the end of the last of `calls` runs of the work. Waits
  // for the device.
  virtual double seconds() = 0;
};

// `work` enqueues operators and must allocate nothing. With kCaptured it is called `calls` times
// here, in capture mode, and what it enqueued is replayed with the same pointers. `backend` must
// outlive the result.
std::unique_ptr<DeviceTimer> make_device_timer(Backend& backend, Submit submit, int calls,
                                               std::function<void()> work);

}  // namespace tandem::ops
