// Loops over independent pieces of work on the backend's OpenMP threads. Pieces are handed out as
// threads become free, so a busy core costs its share only; no value depends on who computes what.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/cpu_backend.h"

namespace tandem::cpu {

// body(first, last, thread) for consecutive ranges of at most `grain` of 0..count-1. It must not
// throw: an exception cannot leave a parallel region.
template <class Body>
void parallel_ranges(const CpuBackend& backend, std::int64_t count, std::int64_t grain,
                     const Body& body) {
  if (count <= 0) return;
  const std::int64_t num_ranges = (count + grain - 1) / grain;
  const int threads = static_cast<int>(std::min<std::int64_t>(backend.num_threads(), num_ranges));
  if (threads == 1) {
    body(std::int64_t{0}, count, 0);
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (std::int64_t i = 0; i < num_ranges; ++i) {
    body(i * grain, std::min(count, (i + 1) * grain), omp_get_thread_num());
  }
}

// A grain of rows that is worth a thread's while: at least 16k elements.
inline std::int64_t rows_of_work(std::int64_t width) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, width));
}

}  // namespace tandem::cpu
