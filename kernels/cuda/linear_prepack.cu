// Lays out FP4 and FP8 codes as the linears read them (device/e2m1.cuh, device/e4m3_words.cuh),
// when a weight is loaded.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/weights.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    prepack_kernel(std::uint32_t* words, std::int64_t count, ops::WeightFormat format) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) words[i] = prepacked_word(format, words[i]);
}

}  // namespace

void prepack_weight(CudaBackend& backend, const ops::LinearWeight& weight) {
  const std::int64_t count = prepacked_words(weight);
  if (count == 0) return;
  auto* words = static_cast<std::uint32_t*>(const_cast<void*>(weight.data));
  launch(backend, prepack_kernel, blocks_for(count, kThreads), kThreads, 0, words, count,
         weight.format);
  backend.synchronize();
}

}  // namespace tandem::cuda
