// Micro-benchmark of the collectives of a forward pass, through the same interface and on the same
// kind of memory as the engine's: time by size, with the results checked. Every rank takes part.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bench/timing.h"
#include "kernels/backend.h"
#include "parallel/device_comm.h"
#include "parallel/host_comm.h"

namespace tandem {

enum class Collective { kAllReduce, kAllGather };

std::string_view collective_name(Collective collective);  // "all-reduce", "all-gather"
Collective collective_named(std::string_view name);       // its reverse

struct CollectiveBenchOptions {
  std::int64_t max_bytes = 0;  // 0: 1 GiB on GPUs, 64 MiB on CPUs
  BenchRepeats repeats{.groups = 3, .runs = 5};
  double sample_s = 1e-3;
};

struct CollectiveBenchResult {
  Collective collective = Collective::kAllReduce;
  std::int64_t bytes = 0;  // all-reduce: of the vector; all-gather: of all ranks' parts together
  int num_ranks = 1;
  double seconds = 0;    // of the slowest rank
  bool correct = false;  // on every rank

  double bytes_per_s() const { return static_cast<double>(bytes) / seconds; }
  // What each rank must at least send and receive: 2 (n - 1) / n of the bytes for a sum, (n - 1) /
  // n for a gather. Comparable with a link's rate, whatever the number of ranks.
  double bus_bytes_per_s() const;
};

// 8 B, 32 B ... 8 KiB ... up to max_bytes, times four each, and max_bytes itself.
std::vector<std::int64_t> collective_sizes(std::int64_t max_bytes);

// Collective; the same result on every rank. `comm` is that of all ranks of `world`.
std::vector<CollectiveBenchResult> run_collective_bench(const HostComm& world, Backend& backend,
                                                        DeviceComm& comm,
                                                        const CollectiveBenchOptions& options);

}  // namespace tandem
