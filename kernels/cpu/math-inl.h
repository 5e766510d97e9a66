// Exponential and the activations made of it, on the virtual vector of simd-inl.h. Only additions,
// multiplications, divisions and fused multiply-adds, so an element's value depends neither on its
// place in the vector nor on the target. Relative error below 2e-7 for normal results.
#if defined(TANDEM_KERNELS_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_KERNELS_CPU_MATH_INL_H_
#undef TANDEM_KERNELS_CPU_MATH_INL_H_
#else
#define TANDEM_KERNELS_CPU_MATH_INL_H_
#endif

#include <cmath>
#include <cstdint>

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {

// e^x: x = n ln 2 + r with |r| <= ln 2 / 2 (Cody & Waite), a polynomial for e^r (the coefficients
// of Cephes' expf), and 2^n in two factors so that subnormal results come out gradually.
HWY_INLINE F32x16 exp16(const F32x16& x) {
  const F32x16 clamped = min16(max16(x, set16(-104.0f)), set16(89.0f));
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the sum.
  const F32x16 magic = set16(12582912.0f);
  const F32x16 shifted = fma16(clamped, set16(1.44269504088896341f), magic);
  const F32x16 n = sub16(shifted, magic);
  F32x16 r = fma16(n, set16(-0.693359375f), clamped);
  r = fma16(n, set16(2.12194440e-4f), r);
  F32x16 poly = set16(1.9875691500e-4f);
  poly = fma16(poly, r, set16(1.3981999507e-3f));
  poly = fma16(poly, r, set16(8.3334519073e-3f));
  poly = fma16(poly, r, set16(4.1665795894e-2f));
  poly = fma16(poly, r, set16(1.6666665459e-1f));
  poly = fma16(poly, r, set16(5.0000001201e-1f));
  poly = add16(fma16(poly, mul16(r, r), r), set16(1.0f));

  const hn::Rebind<std::int32_t, PartTag> int_tag;
  F32x16 y;
  TANDEM_FOR_PARTS {
    const auto exponent =
        hn::Sub(hn::BitCast(int_tag, shifted.part[p]), hn::BitCast(int_tag, magic.part[p]));
    const auto half = hn::ShiftRight<1>(exponent);
    const auto bias = hn::Set(int_tag, 127);
    const auto scale_1 = hn::BitCast(PartTag(), hn::ShiftLeft<23>(hn::Add(half, bias)));
    const auto scale_2 =
        hn::BitCast(PartTag(), hn::ShiftLeft<23>(hn::Add(hn::Sub(exponent, half), bias)));
    y.part[p] = hn::Mul(hn::Mul(poly.part[p], scale_1), scale_2);
  }
  return if_ordered16(x, y, x);
}

// One exponential, equal to exp16's, and so equal on every target (std::exp would be a third
// value).
HWY_INLINE float exp_scalar(float x) {
  float y[kLanes];
  store16(exp16(set16(x)), y);
  return y[0];
}

HWY_INLINE F32x16 sigmoid16(const F32x16& x) {
  const F32x16 one = set16(1.0f);
  return div16(one, add16(one, exp16(sub16(zero16(), x))));
}

HWY_INLINE F32x16 silu16(const F32x16& x) {
  return div16(x, add16(set16(1.0f), exp16(sub16(zero16(), x))));
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard, per target
