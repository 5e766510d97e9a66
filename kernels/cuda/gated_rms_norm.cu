// The norm and output gate behind the delta rule: one warp a row and head.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/ops/limits.h"

namespace tandem::cuda {
namespace {

constexpr int kWarps = 4;

constexpr int kHeld = 8;  // elements of a lane: heads of up to 256
static_assert(kHeld * kWarp >= ops::kMaxGdnDim);

template <class T>
__global__ void __launch_bounds__(kWarps* kWarp) gated_rms_norm_kernel(ops::GatedRmsNormArgs a) {
  allow_next_kernel();
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const auto for_held = [&](const auto& function) {
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      if (lane + n * kWarp < a.width) function(n, lane + n * kWarp);
    }
  };
  float weight[kHeld] = {}, values[kHeld] = {}, gates[kHeld] = {};
  for_held([&](int n, int i) { weight[n] = a.weight[i]; });  // no kernel writes them
  wait_for_previous_kernel();
  const std::int64_t head = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (head >= std::int64_t{a.num_rows} * a.num_heads) return;
  const float* o = a.o + head * a.width;
  const T* z = static_cast<const T*>(a.z) + head * a.width;
  T* y = static_cast<T*>(a.y) + head * a.width;
  for_held([&](int n, int i) {
    values[n] = o[i];
    gates[n] = load_float(z + i);
  });
  float squares = 0;
#pragma unroll
  for (int n = 0; n < kHeld; ++n) squares = fmaf(values[n], values[n], squares);
  const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(a.width) + a.eps);
  for_held([&](int n, int i) {
    const float act =
        a.activation == ops::GateActivation::kSilu ? silu(gates[n]) : sigmoid(gates[n]);
    store_float(weight[n] * (values[n] * scale) * act, y + i);
  });
}

}  // namespace

void gated_rms_norm(CudaBackend& backend, const ops::GatedRmsNormArgs& args) {
  const unsigned blocks = blocks_for(std::int64_t{args.num_rows} * args.num_heads, kWarps);
  with_float_type(args.dtype, [&](auto type) {
    launch_overlapping(backend, gated_rms_norm_kernel<decltype(type)>, blocks, kWarps * kWarp, 0,
                       args);
  });
}

}  // namespace tandem::cuda
