// The host's clock and rates, for the instruments of kernels/ops.
#include <utility>

#include "base/clock.h"
#include "kernels/cpu/cpu_ops.h"

namespace tandem::cpu {
namespace {

class HostTimer final : public ops::DeviceTimer {
 public:
  HostTimer(int calls, std::function<void()> work) : calls_(calls), work_(std::move(work)) {}

  double seconds() override {
    const double begin_s = monotonic_s();
    for (int i = 0; i < calls_; ++i) work_();
    return monotonic_s() - begin_s;
  }

 private:
  int calls_;
  std::function<void()> work_;
};

}  // namespace

std::unique_ptr<ops::DeviceTimer> make_device_timer(CpuBackend&, ops::Submit, int calls,
                                                    std::function<void()> work) {
  return std::make_unique<HostTimer>(calls, std::move(work));
}

ops::MatrixRate measure_matrix_rate(CpuBackend&, int) {
  return {.flops_per_s = 0, .source = "no matrix library on the CPU backend"};
}

}  // namespace tandem::cpu
