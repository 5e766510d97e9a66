#include "bench/timing.h"

namespace tandem {

double device_seconds(Backend& backend, const BenchRepeats& repeats, const DeviceCalls& calls,
                      const std::function<void()>& work) {
  if (repeats.clock == BenchClock::kProcessor) {
    return least_median_s(repeats,
                          [&] {
                            for (int i = 0; i < calls.calls; ++i) work();
                            backend.synchronize();
                          }) /
           calls.calls;
  }
  // What a first call sets up (attributes of kernels, pages) must not happen in capture mode.
  work();
  backend.synchronize();
  const auto timer = ops::make_device_timer(backend, calls.submit, calls.calls, work);
  timer->seconds();
  return least_median(repeats, [&] { return timer->seconds(); }) / calls.calls;
}

int calls_for_sample(Backend& backend, double sample_s, const std::function<void()>& work) {
  constexpr double kMostCalls = 64;
  work();
  backend.synchronize();
  const double begin_s = monotonic_s();
  work();
  backend.synchronize();
  const double one_s = std::max(monotonic_s() - begin_s, 1e-9);
  return static_cast<int>(std::clamp(sample_s / one_s, 1.0, kMostCalls));
}

}  // namespace tandem
