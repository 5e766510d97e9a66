// RMSNorm, alone and behind the update of the residual stream: one block a row.
#include "kernels/cuda/rms_norm.cuh"

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_chain.h"

namespace tandem::cuda {
namespace {

template <bool kWide, class TX, class TY>
__global__ void __launch_bounds__(kNormThreads) rms_norm_kernel(ops::RmsNormArgs a) {
  allow_next_kernel();
  __shared__ float sums[kNormWarps];
  const HeldGroups held = held_weight<kWide>(a.weight, a.width);
  wait_for_previous_kernel();
  const TX* x = static_cast<const TX*>(a.x) + blockIdx.x * a.x_stride;
  TY* y = static_cast<TY*>(a.y) + blockIdx.x * a.y_stride;
  const float offset = a.weight_kind == ops::NormWeight::kZeroCentered ? 1.0f : 0.0f;
  const auto read = [&](int i) { return RowAccess<kWide>::load(x, i, a.width); };
  HeldGroups values;
#pragma unroll
  for (int n = 0; n < kNormHeld; ++n) values.of[n] = read(held_element(n));
  norm_row<kWide>(values, held, a.weight, a.width, a.eps, offset, y, nullptr, read, read, sums);
}

template <bool kWide, class T>
__global__ void __launch_bounds__(kNormThreads)
    residual_rms_norm_kernel(ops::ResidualRmsNormArgs a) {
  allow_next_kernel();
  __shared__ float sums[kNormWarps];
  const HeldGroups held = held_weight<kWide>(a.weight, a.width);
  wait_for_previous_kernel();
  residual_norm_row<kWide, T>(a, static_cast<int>(blockIdx.x), held, sums);
}

// Calls function(std::true_type{}) or function(std::false_type{}).
template <class Function>
void with_width(bool wide, const Function& function) {
  if (wide) return function(std::true_type{});
  function(std::false_type{});
}

}  // namespace

void rms_norm(CudaBackend& backend, const ops::RmsNormArgs& args) {
  const auto rows = static_cast<unsigned>(args.num_rows);
  const bool wide = args.width % kNormGroup == 0 && args.x_stride % kNormGroup == 0 &&
                    args.y_stride % kNormGroup == 0 && in_whole_groups(args.x, args.x_dtype) &&
                    in_whole_groups(args.y, args.y_dtype) &&
                    in_whole_groups(args.weight, DType::kF32);
  with_float_type(args.x_dtype, [&](auto x) {
    with_float_type(args.y_dtype, [&](auto y) {
      with_width(wide, [&](auto is_wide) {
        launch_overlapping(backend, rms_norm_kernel<is_wide(), decltype(x), decltype(y)>, rows,
                           kNormThreads, 0, args);
      });
    });
  });
}

void residual_rms_norm(CudaBackend& backend, const ops::ResidualRmsNormArgs& args) {
  if (backend.chain().add_norm(args)) return;
  residual_rms_norm_alone(backend, args);
}

void residual_rms_norm_alone(const CudaBackend& backend, const ops::ResidualRmsNormArgs& args) {
  with_float_type(args.residual_dtype, [&](auto type) {
    with_width(has_wide_rows(args), [&](auto is_wide) {
      launch_overlapping(backend, residual_rms_norm_kernel<is_wide(), decltype(type)>,
                         static_cast<unsigned>(args.num_rows), kNormThreads, 0, args);
    });
  });
}

}  // namespace tandem::cuda
