// Fixed kernels timed at the start and every few minutes between steps: a machine that has become
// slower than its own start shows here, whatever its tools say (GB10 has slow states that
// nvidia-smi hides, one of which leaves the copy bandwidth untouched; hence three kinds of kernel).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "kernels/backend.h"

namespace tandem {

class Canary {
 public:
  static constexpr std::size_t kNumKernels = 3;
  using Times = std::array<double, kNumKernels>;  // seconds

  // "copy", "gemv", "gemm": a copy, a matrix-vector and a matrix-matrix product.
  static std::string_view kernel_name(std::size_t kernel);
  static constexpr double kPeriod_s = 180;
  // Slower than the start by more than this share counts as slow.
  static constexpr double kSlowShare = 0.10;
  // Device memory it holds, for the plan. Larger than the caches of the machines we run on.
  static std::size_t bytes();

  // Allocates; only for start-up.
  explicit Canary(Backend& backend);
  ~Canary();
  Canary(const Canary&) = delete;
  Canary& operator=(const Canary&) = delete;

  // Runs each kernel a few times and returns the best times: disturbances make a run slower, a slow
  // state makes all of them slower.
  Times measure();

 private:
  void run(std::size_t kernel);

  Backend& backend_;
  std::byte* memory_;
};

}  // namespace tandem
