#include "kernels/ops/device_timer.h"

#include <utility>

#include "kernels/ops/dispatch.h"

namespace tandem::ops {

std::unique_ptr<DeviceTimer> make_device_timer(Backend& backend, Submit submit, int calls,
                                               std::function<void()> work) {
  TANDEM_CHECK(calls > 0, "{} calls", calls);
  TANDEM_DISPATCH(make_device_timer, backend, submit, calls, std::move(work));
}

}  // namespace tandem::ops
