// RMSNorm, alone and behind the update of the residual stream: one block a row. Thread t owns the
// elements t, t + kThreads, ... and adds their squares in ascending order.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

// Part of the order of summation.
constexpr int kThreads = 512;

__device__ __forceinline__ float rms_scale(float own_squares, int width, float eps) {
  const float mean = block_sum<kThreads>(own_squares) / static_cast<float>(width);
  return 1.0f / sqrtf(mean + eps);
}

template <class TX, class TY>
__global__ void __launch_bounds__(kThreads) rms_norm_kernel(ops::RmsNormArgs a) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const TX* x = static_cast<const TX*>(a.x) + blockIdx.x * a.x_stride;
  TY* y = static_cast<TY*>(a.y) + blockIdx.x * a.y_stride;
  const float offset = a.weight_kind == ops::NormWeight::kZeroCentered ? 1.0f : 0.0f;
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < a.width; i += kThreads) {
    const float value = load_float(x + i);
    squares = fmaf(value, value, squares);
  }
  const float scale = rms_scale(squares, a.width, a.eps);
  for (int i = static_cast<int>(threadIdx.x); i < a.width; i += kThreads) {
    store_float(load_float(x + i) * scale * (offset + a.weight[i]), y + i);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) residual_rms_norm_kernel(ops::ResidualRmsNormArgs a) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const std::int64_t first = std::int64_t{blockIdx.x} * a.width;
  T* residual = static_cast<T*>(a.residual) + first;
  const float* delta = a.delta + first;
  T* y = static_cast<T*>(a.y) + first;
  const bool add = a.update == ops::ResidualUpdate::kAdd;
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x); i < a.width; i += kThreads) {
    const float sum = add ? load_float(residual + i) + delta[i] : delta[i];
    const float value = rounded_to<T>(sum);
    store_float(value, residual + i);
    squares = fmaf(value, value, squares);
  }
  const float scale = rms_scale(squares, a.width, a.eps);
  for (int i = static_cast<int>(threadIdx.x); i < a.width; i += kThreads) {
    store_float(load_float(residual + i) * scale * (1.0f + a.weight[i]), y + i);
  }
}

}  // namespace

void rms_norm(CudaBackend& backend, const ops::RmsNormArgs& args) {
  const auto rows = static_cast<unsigned>(args.num_rows);
  with_float_type(args.x_dtype, [&](auto x) {
    with_float_type(args.y_dtype, [&](auto y) {
      launch_overlapping(backend, rms_norm_kernel<decltype(x), decltype(y)>, rows, kThreads, 0,
                         args);
    });
  });
}

void residual_rms_norm(CudaBackend& backend, const ops::ResidualRmsNormArgs& args) {
  with_float_type(args.residual_dtype, [&](auto type) {
    launch_overlapping(backend, residual_rms_norm_kernel<decltype(type)>,
                       static_cast<unsigned>(args.num_rows), kThreads, 0, args);
  });
}

}  // namespace tandem::cuda
