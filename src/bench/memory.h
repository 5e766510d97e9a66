// Micro-benchmark of memory: what the backend's own sweeps and its copies move in a second. Every
// method is checked for doing what it says; the fastest reader is the measured bandwidth that other
// benchmarks are compared with, because a decode step does little but read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "kernels/backend.h"

namespace tandem {

struct MemoryBenchOptions {
  std::int64_t bytes = 0;  // of each of three arrays; 0: 2 GiB on a GPU, 256 MiB on a CPU
  BenchRepeats repeats{.groups = 3, .runs = 5};
};

enum class MemoryTraffic { kRead, kWrite, kCopy, kAdd };

struct MemoryBenchResult {
  MemoryTraffic traffic = MemoryTraffic::kRead;
  std::string method;      // "sweep 2", "backend copy", "backend copy in a graph"
  std::int64_t bytes = 0;  // read plus written by one call
  double seconds = 0;      // of one call
  bool correct = false;

  double bytes_per_s() const { return static_cast<double>(bytes) / seconds; }
};

std::string_view traffic_name(MemoryTraffic traffic);  // "read", "write", "copy", "add"
MemoryTraffic traffic_named(std::string_view name);    // its reverse

std::vector<MemoryBenchResult> run_memory_bench(Backend& backend,
                                                const MemoryBenchOptions& options);
// The fastest correct method of a kind; nullptr if there is none.
const MemoryBenchResult* best_of(const std::vector<MemoryBenchResult>& results,
                                 MemoryTraffic traffic);

// Bytes per second of the fastest reader over `bytes`.
double measure_read_bandwidth(Backend& backend, std::int64_t bytes, const BenchRepeats& repeats);
std::int64_t default_sweep_bytes(const Backend& backend);

}  // namespace tandem
