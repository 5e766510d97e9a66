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

// Of a thread's elements these stay in registers between the two passes, all loads under way
// together; a row of few thousand is all latency. Three blocks' worth of threads bound the
// registers, not the blocks: few enough for a block to begin beside one of a linear's.
constexpr int kHeld = 10;

// What a row's elements are multiplied with. No kernel writes it: it is there before the row is.
struct HeldWeight {
  float of[kHeld];

  __device__ HeldWeight(const float* weight, int width) {
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      const int i = static_cast<int>(threadIdx.x) + n * kThreads;
      of[n] = i < width ? weight[i] : 0.0f;
    }
  }
};

// Calls function(n, i) for the elements i of this thread that are held, n being their places.
template <class Function>
__device__ __forceinline__ void for_held(int width, const Function& function) {
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    const int i = static_cast<int>(threadIdx.x) + n * kThreads;
    if (i < width) function(n, i);
  }
}

// The norm of a row, of which x are the held elements, zeros beyond its end. The others come from
// read(i), in ascending order, and once more from reread(i).
template <class TY, class Read, class Reread>
__device__ __forceinline__ void norm_row(const float (&x)[kHeld], const HeldWeight& held,
                                         const float* weight, int width, float eps, float offset,
                                         TY* y, const Read& read, const Reread& reread) {
  const int first_other = static_cast<int>(threadIdx.x) + kHeld * kThreads;
  float squares = 0;
#pragma unroll
  for (int n = 0; n < kHeld; ++n) squares = fmaf(x[n], x[n], squares);
  for (int i = first_other; i < width; i += kThreads) {
    const float value = read(i);
    squares = fmaf(value, value, squares);
  }
  const float scale = rms_scale(squares, width, eps);
  for_held(width, [&](int n, int i) { store_float(x[n] * scale * (offset + held.of[n]), y + i); });
  for (int i = first_other; i < width; i += kThreads) {
    store_float(reread(i) * scale * (offset + weight[i]), y + i);
  }
}

template <class TX, class TY>
__global__ void __launch_bounds__(kThreads, 3) rms_norm_kernel(ops::RmsNormArgs a) {
  allow_next_kernel();
  const HeldWeight held(a.weight, a.width);
  wait_for_previous_kernel();
  const TX* x = static_cast<const TX*>(a.x) + blockIdx.x * a.x_stride;
  TY* y = static_cast<TY*>(a.y) + blockIdx.x * a.y_stride;
  const float offset = a.weight_kind == ops::NormWeight::kZeroCentered ? 1.0f : 0.0f;
  float values[kHeld] = {};
  for_held(a.width, [&](int n, int i) { values[n] = load_float(x + i); });
  const auto read = [x](int i) { return load_float(x + i); };
  norm_row(values, held, a.weight, a.width, a.eps, offset, y, read, read);
}

template <class T>
__global__ void __launch_bounds__(kThreads, 3)
    residual_rms_norm_kernel(ops::ResidualRmsNormArgs a) {
  allow_next_kernel();
  const HeldWeight held(a.weight, a.width);
  wait_for_previous_kernel();
  const std::int64_t first = std::int64_t{blockIdx.x} * a.width;
  T* residual = static_cast<T*>(a.residual) + first;
  const float* delta = a.delta + first;
  T* y = static_cast<T*>(a.y) + first;
  const bool add = a.update == ops::ResidualUpdate::kAdd;
  const auto updated = [add](float old, float more) {
    return rounded_to<T>(add ? old + more : more);
  };
  float old[kHeld] = {}, values[kHeld] = {};
  for_held(a.width, [&](int n, int i) {
    if (add) old[n] = load_float(residual + i);
    values[n] = delta[i];
  });
  for_held(a.width, [&](int n, int i) {
    values[n] = updated(old[n], values[n]);
    store_float(values[n], residual + i);
  });
  norm_row(
      values, held, a.weight, a.width, a.eps, 1.0f, y,
      [&](int i) {
        const float value = updated(add ? load_float(residual + i) : 0.0f, delta[i]);
        store_float(value, residual + i);
        return value;
      },
      [residual](int i) { return load_float(residual + i); });
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
