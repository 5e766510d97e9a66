// RMSNorm and the residual update before it. The sum of squares uses the lane order of simd-inl.h,
// so it depends on the width only. Threads take rows.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rms_norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <utility>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {
namespace {

// (x * scale) * (offset + w)
HWY_INLINE F32x16 scaled16(const F32x16& x, const F32x16& w, float scale, float offset) {
  return mul16(mul16(x, set16(scale)), add16(w, set16(offset)));
}

template <class T>
float row_factor(const T* x, float eps, int width) {
  return 1.0f / std::sqrt(sum_of_squares(x, width) / static_cast<float>(width) + eps);
}

template <class TX, class TY>
void scale_row(const TX* x, const float* weight, float scale, float offset, int width, TY* y) {
  int i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    store16(scaled16(load16(x + i), load16(weight + i), scale, offset), y + i);
  }
  if (i < width) {
    const int n = width - i;
    store16_n(scaled16(load16_n(x + i, n), load16_n(weight + i, n), scale, offset), y + i, n);
  }
}

template <class TX, class TY>
void norm_rows(const ops::RmsNormArgs& a, std::int64_t first, std::int64_t last) {
  const float offset = a.weight_kind == ops::NormWeight::kZeroCentered ? 1.0f : 0.0f;
  for (std::int64_t r = first; r < last; ++r) {
    const TX* x = static_cast<const TX*>(a.x) + r * a.x_stride;
    scale_row(x, a.weight, row_factor(x, a.eps, a.width), offset, a.width,
              static_cast<TY*>(a.y) + r * a.y_stride);
  }
}

void rms_norm_rows(const ops::RmsNormArgs& a, std::int64_t first, std::int64_t last) {
  const bool wide_x = a.x_dtype == DType::kF32;
  const bool wide_y = a.y_dtype == DType::kF32;
  if (wide_x && wide_y) return norm_rows<float, float>(a, first, last);
  if (wide_x) return norm_rows<float, bf16>(a, first, last);
  if (wide_y) return norm_rows<bf16, float>(a, first, last);
  norm_rows<bf16, bf16>(a, first, last);
}

template <class T>
void update_rows(const ops::ResidualRmsNormArgs& a, std::int64_t first, std::int64_t last) {
  const bool add = a.update == ops::ResidualUpdate::kAdd;
  for (std::int64_t r = first; r < last; ++r) {
    T* residual = static_cast<T*>(a.residual) + r * a.width;
    const float* delta = a.delta + r * a.width;
    int i = 0;
    for (; i + kLanes <= a.width; i += kLanes) {
      const F32x16 d = load16(delta + i);
      store16(add ? add16(load16(residual + i), d) : d, residual + i);
    }
    if (i < a.width) {
      const int n = a.width - i;
      const F32x16 d = load16_n(delta + i, n);
      store16_n(add ? add16(load16_n(residual + i, n), d) : d, residual + i, n);
    }
    float factor = row_factor(residual, a.eps, a.width);
    if (a.row_factors != nullptr) a.row_factors[r] = std::exchange(factor, 1.0f);
    scale_row(residual, a.weight, factor, 1.0f, a.width, static_cast<T*>(a.y) + r * a.width);
  }
}

void residual_rms_norm_rows(const ops::ResidualRmsNormArgs& a, std::int64_t first,
                            std::int64_t last) {
  if (a.residual_dtype == DType::kF32) return update_rows<float>(a, first, last);
  update_rows<bf16>(a, first, last);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(rms_norm_rows);
HWY_EXPORT(residual_rms_norm_rows);

void rms_norm(CpuBackend& backend, const ops::RmsNormArgs& args) {
  const auto rows = HWY_DYNAMIC_DISPATCH(rms_norm_rows);
  parallel_ranges(backend, args.num_rows, rows_of_work(args.width),
                  [&](std::int64_t first, std::int64_t last, int) { rows(args, first, last); });
}

void residual_rms_norm(CpuBackend& backend, const ops::ResidualRmsNormArgs& args) {
  const auto rows = HWY_DYNAMIC_DISPATCH(residual_rms_norm_rows);
  parallel_ranges(backend, args.num_rows, rows_of_work(args.width),
                  [&](std::int64_t first, std::int64_t last, int) { rows(args, first, last); });
}

}  // namespace tandem::cpu
#endif  // HWY_ONCE
