// Vector pieces of both orders of the gated delta rule.
#if defined(TANDEM_KERNELS_CPU_GATED_DELTA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_KERNELS_CPU_GATED_DELTA_INL_H_
#undef TANDEM_KERNELS_CPU_GATED_DELTA_INL_H_
#else
#define TANDEM_KERNELS_CPU_GATED_DELTA_INL_H_
#endif

#include <cmath>

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {

// y = x * rsqrt(sum x^2 + 1e-6) * factor; n is a multiple of 16.
template <class T>
HWY_INLINE void normalize(const T* x, int n, float factor, float* y) {
  const F32x16 scale = set16(1.0f / std::sqrt(sum_of_squares(x, n) + 1e-6f) * factor);
  for (int i = 0; i < n; i += kLanes) store16(mul16(load16(x + i), scale), y + i);
}

template <class T>
HWY_INLINE void widen(const T* x, int n, float* y) {
  for (int i = 0; i < n; i += kLanes) store16(load16(x + i), y + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard, per target
