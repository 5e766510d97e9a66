// Micro-benchmark of the operator that decides a step's time: linears of a model's shapes, a few
// rows against the bandwidth that the same device reaches when it only reads, many rows against the
// rate of the vendor's matrix library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench_weights.h"
#include "bench/timing.h"
#include "kernels/backend.h"
#include "kernels/ops/linear.h"

namespace tandem {

// The linears of Qwen3.8-27B with more than 2 % of its weights; equal shapes once.
std::vector<GemmShape> model_shapes();

// From this many rows on a linear is one of a prompt: RowClass::kPrompt.
inline constexpr int kPromptRows = 128;
// Largest error of a sum of products, relative to the sum of their magnitudes.
inline constexpr double kGemmTolerance = 4e-6;

struct GemmBenchOptions {
  // The MLP of Qwen3.8-27B, gate (or up) and down: as BF16 each is several times a cache.
  std::vector<GemmShape> shapes{{17408, 5120, "mlp gate, up"}, {5120, 17408, "mlp down"}};
  std::vector<ops::WeightFormat> formats{ops::WeightFormat::kBf16};
  std::vector<int> rows{1, 2, 4, 8, 16};
  BenchRepeats repeats;
  // Weights lie in memory so many times, at most, that a call never finds them in a cache.
  std::int64_t ring_bytes = std::int64_t{256} << 20;
  double sample_s = 1e-3;  // a sample lasts at least that long, in as many calls as it takes
};

struct GemmBenchResult {
  ops::WeightFormat format = ops::WeightFormat::kBf16;
  GemmShape shape;
  int num_rows = 0;
  std::int64_t bytes = 0;  // weights and scales, x and y, each once
  double seconds = 0;
  // Largest error of a sample of outputs against a double-precision product, relative to the sum of
  // its terms' magnitudes: the speed of a wrong result says nothing.
  double error = 0;

  double bytes_per_s() const { return static_cast<double>(bytes) / seconds; }
  double flops_per_s() const {
    return 2.0 * num_rows * static_cast<double>(shape.out_features * shape.in_features) / seconds;
  }
  bool correct() const { return error <= kGemmTolerance; }
};

std::vector<GemmBenchResult> run_gemm_bench(Backend& backend, const GemmBenchOptions& options);

}  // namespace tandem
