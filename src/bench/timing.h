// How every micro-benchmark takes its time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <ctime>
#include <limits>
#include <vector>

#include "base/clock.h"

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

// Seconds of one `run()`, after one that warms caches and threads up.
template <class Run>
double least_median_s(const BenchRepeats& repeats, const Run& run) {
  run();
  double least = std::numeric_limits<double>::infinity();
  for (int group = 0; group < repeats.groups; ++group) {
    std::vector<double> seconds;
    for (int i = 0; i < repeats.runs; ++i) {
      const double start = bench_now_s(repeats.clock);
      run();
      seconds.push_back(bench_now_s(repeats.clock) - start);
    }
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::nth_element(seconds.begin(), middle, seconds.end());
    least = std::min(least, *middle);
  }
  return least;
}

}  // namespace tandem
