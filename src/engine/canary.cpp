#include "engine/canary.h"

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "base/error.h"
#include "base/types.h"
#include "kernels/ops/linear.h"

namespace tandem {
namespace {

constexpr std::int64_t kIn = 4096;
constexpr std::int64_t kOut = 4096;
constexpr std::int64_t kGemmOut = 512;
constexpr int kGemmRows = 64;
constexpr int kRepeats = 3;

constexpr std::size_t kMatrixBytes = kIn * kOut * sizeof(bf16);
constexpr std::size_t kInputBytes = kGemmRows * kIn * sizeof(bf16);
constexpr std::size_t kOutputBytes = kGemmRows * kOut * sizeof(float);

}  // namespace

std::string_view Canary::kernel_name(std::size_t kernel) {
  constexpr std::array<std::string_view, kNumKernels> kNames = {"copy", "gemv", "gemm"};
  return kNames.at(kernel);
}

std::size_t Canary::bytes() { return kMatrixBytes + kInputBytes + kOutputBytes; }

Canary::Canary(Backend& backend)
    : backend_(backend), memory_(static_cast<std::byte*>(backend.allocate(bytes()))) {
  backend_.zero(memory_, bytes());
  // One pattern everywhere; the kernels' time does not depend on values, but zeros can be special.
  bf16 pattern[kIn];
  for (std::int64_t i = 0; i < kIn; ++i)
    pattern[i] = to_bf16(0.01f * static_cast<float>(i % 61 - 30));
  for (std::int64_t row = 0; row < kOut + kGemmRows; ++row) {
    backend_.copy(memory_ + static_cast<std::size_t>(row) * sizeof pattern, pattern,
                  sizeof pattern);
  }
  backend_.synchronize();
}

Canary::~Canary() { backend_.deallocate(memory_, bytes()); }

void Canary::run(std::size_t kernel) {
  if (kernel == 0) {
    backend_.copy(memory_, memory_ + kMatrixBytes / 2, kMatrixBytes / 2);
    return;
  }
  const bool gemv = kernel == 1;
  ops::linear(backend_, {.x = memory_ + kMatrixBytes,
                         .x_dtype = DType::kBF16,
                         .x_stride = kIn,
                         .num_rows = gemv ? 1 : kGemmRows,
                         .weight = {.format = ops::WeightFormat::kBf16,
                                    .out_features = gemv ? kOut : kGemmOut,
                                    .in_features = kIn,
                                    .data = memory_},
                         .num_leaves = 1,
                         .y = memory_ + kMatrixBytes + kInputBytes,
                         .y_dtype = DType::kF32,
                         .y_stride = kOut});
}

Canary::Times Canary::measure() {
  Times best;
  for (std::size_t kernel = 0; kernel < kNumKernels; ++kernel) {
    best[kernel] = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kRepeats; ++i) {
      backend_.synchronize();
      const double begin_s = monotonic_s();
      run(kernel);
      backend_.synchronize();
      best[kernel] = std::min(best[kernel], monotonic_s() - begin_s);
    }
  }
  return best;
}

}  // namespace tandem
