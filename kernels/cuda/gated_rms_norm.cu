// The norm and output gate behind the delta rule: one warp a row and head.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

constexpr int kWarps = 4;

template <class T>
__global__ void __launch_bounds__(kWarps* kWarp) gated_rms_norm_kernel(ops::GatedRmsNormArgs a) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const std::int64_t head = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (head >= std::int64_t{a.num_rows} * a.num_heads) return;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const float* o = a.o + head * a.width;
  const T* z = static_cast<const T*>(a.z) + head * a.width;
  T* y = static_cast<T*>(a.y) + head * a.width;
  float squares = 0;
  for (int i = lane; i < a.width; i += kWarp) squares = fmaf(o[i], o[i], squares);
  const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(a.width) + a.eps);
  for (int i = lane; i < a.width; i += kWarp) {
    const float gate = load_float(z + i);
    const float act = a.activation == ops::GateActivation::kSilu ? silu(gate) : sigmoid(gate);
    store_float(a.weight[i] * (o[i] * scale) * act, y + i);
  }
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
