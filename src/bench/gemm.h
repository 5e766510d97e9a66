// Micro-benchmark of the operator that decides a decode step's time: narrow linears, M = 1 ... 16
// rows, against the bandwidth that the same threads reach when they only read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "kernels/backend.h"
#include "kernels/ops/linear.h"

namespace tandem {

struct GemmShape {
  std::int64_t out_features = 0;  // N
  std::int64_t in_features = 0;   // K
};

struct GemmBenchOptions {
  // The MLP of Qwen3.8-27B, gate (or up) and down: as BF16 each is several times a cache.
  std::vector<GemmShape> shapes{{17408, 5120}, {5120, 17408}};
  std::vector<ops::WeightFormat> formats{ops::WeightFormat::kBf16};  // without block scales
  std::vector<int> rows{1, 2, 4, 8, 16};
  BenchRepeats repeats;
};

struct GemmBenchResult {
  ops::WeightFormat format = ops::WeightFormat::kBf16;
  GemmShape shape;
  int num_rows = 0;
  std::int64_t bytes = 0;  // weights, x and y, each once
  double seconds = 0;
  // Largest error of a sample of outputs against a double-precision product, relative to the sum of
  // its terms' magnitudes: the speed of a wrong result says nothing.
  double error = 0;

  double bytes_per_s() const { return static_cast<double>(bytes) / seconds; }
};

// Bytes per second of reading `bytes` of host memory with the backend's number of threads.
double measure_read_bandwidth(Backend& backend, std::int64_t bytes, const BenchRepeats& repeats);

std::vector<GemmBenchResult> run_gemm_bench(Backend& backend, const GemmBenchOptions& options);

}  // namespace tandem
