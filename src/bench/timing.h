// How every micro-benchmark takes its time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <functional>
#include <limits>
#include <vector>

#include "base/clock.h"
#include "kernels/backend.h"
#include "kernels/ops/device_timer.h"

namespace tandem {

// Other processes may use the cores: the time of a group is the median of its runs, the time of the
// benchmark that of its best group.
// kProcessor counts the seconds that this process ran, for one thread on a machine whose cores are
// busy with other work: what waiting for a core costs is then left out.
enum class BenchClock { kWall, kProcessor };

struct BenchRepeats {
  int groups = 5;
  int runs = 7;
  BenchClock clock = BenchClock::kWall;
};

inline double bench_now_s(BenchClock clock) {
  if (clock == BenchClock::kWall) return monotonic_s();
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// The least of the groups' medians; `sample` returns one time.
template <class Sample>
double least_median(const BenchRepeats& repeats, const Sample& sample) {
  double least = std::numeric_limits<double>::infinity();
  for (int group = 0; group < repeats.groups; ++group) {
    std::vector<double> seconds;
    for (int i = 0; i < repeats.runs; ++i) seconds.push_back(sample());
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::nth_element(seconds.begin(), middle, seconds.end());
    least = std::min(least, *middle);
  }
  return least;
}

// Seconds of one `run()`, after one that warms caches and threads up.
template <class Run>
double least_median_s(const BenchRepeats& repeats, const Run& run) {
  run();
  return least_median(repeats, [&] {
    const double start = bench_now_s(repeats.clock);
    run();
    return bench_now_s(repeats.clock) - start;
  });
}

// How device work is timed: `calls` of it are one sample, so that what a sample costs beside them
// does not count.
struct DeviceCalls {
  ops::Submit submit = ops::Submit::kCaptured;
  int calls = 1;
};

// Seconds of one `work()`, which enqueues on the backend and allocates nothing; after one sample
// that warms up.
double device_seconds(Backend& backend, const BenchRepeats& repeats, const DeviceCalls& calls,
                      const std::function<void()>& work);

// So many calls of `work` that a sample lasts `sample_s`, 1 ... 64. Runs it twice.
int calls_for_sample(Backend& backend, double sample_s, const std::function<void()>& work);

}  // namespace tandem
