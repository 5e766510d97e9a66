// The virtual vector of every CPU kernel: 16 fp32 lanes, whatever the machine has. AVX-512 holds
// them in one register, AVX2 in two, NEON in four, the scalar fallback in sixteen variables.
// Reductions are written over these 16 lanes with fused multiply-adds, so a value is the same bit
// for bit on every target. A Highway per-target header: included once per target by
// foreach_target.h.
#if defined(TANDEM_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_KERNELS_CPU_SIMD_INL_H_
#undef TANDEM_KERNELS_CPU_SIMD_INL_H_
#else
#define TANDEM_KERNELS_CPU_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/types.h"

// Loops over parts and tiles have constant bounds and must vanish: an accumulator that is indexed
// by a variable lives in memory.
#if defined(__clang__)
#define TANDEM_UNROLL _Pragma("clang loop unroll(full)")
#else
#define TANDEM_UNROLL _Pragma("GCC unroll 16")
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr int kLanes = 16;

using PartTag = hn::CappedTag<float, kLanes>;
inline constexpr int kPartLanes = static_cast<int>(hn::MaxLanes(PartTag()));
inline constexpr int kParts = kLanes / kPartLanes;

using Part = hn::Vec<PartTag>;

struct F32x16 {
  // Not left to the compiler: GCC gives a constructor it makes itself no target attribute, and on
  // Arm then refuses to inline those of the parts. Leaves the parts uninitialized.
  HWY_INLINE F32x16() {}

  Part part[kParts];
};

#define TANDEM_FOR_PARTS TANDEM_UNROLL for (int p = 0; p < kParts; ++p)

HWY_INLINE F32x16 set16(float x) {
  F32x16 y;
  TANDEM_FOR_PARTS y.part[p] = hn::Set(PartTag(), x);
  return y;
}

HWY_INLINE F32x16 zero16() { return set16(0.0f); }

HWY_INLINE F32x16 load16(const float* x) {
  F32x16 y;
  TANDEM_FOR_PARTS y.part[p] = hn::LoadU(PartTag(), x + p * kPartLanes);
  return y;
}

HWY_INLINE F32x16 load16(const bf16* x) {
  const hn::Rebind<std::uint16_t, PartTag> half_tag;
  const hn::Rebind<std::uint32_t, PartTag> wide_tag;
  F32x16 y;
  TANDEM_FOR_PARTS {
    const auto codes =
        hn::LoadU(half_tag, reinterpret_cast<const std::uint16_t*>(x) + p * kPartLanes);
    y.part[p] = hn::BitCast(PartTag(), hn::ShiftLeft<16>(hn::PromoteTo(wide_tag, codes)));
  }
  return y;
}

// By integers and one subtraction: multiplying subnormal numbers up is slow on many processors.
HWY_INLINE F32x16 load16(const e4m3* x) {
  const hn::Rebind<std::uint8_t, PartTag> code_tag;
  const hn::Rebind<std::uint32_t, PartTag> wide_tag;
  const auto subnormals = hn::Set(wide_tag, 8u);
  const auto nan = hn::Set(wide_tag, 0x7fu);
  F32x16 y;
  TANDEM_FOR_PARTS {
    const auto codes = hn::PromoteTo(
        wide_tag, hn::LoadU(code_tag, reinterpret_cast<const std::uint8_t*>(x) + p * kPartLanes));
    const auto magnitude = hn::And(codes, nan);
    const auto digits = hn::ShiftLeft<20>(magnitude);
    // 2^-6 (1 + m / 8) - 2^-6 where the exponent is 0; the bias moved from 7 to 127 elsewhere.
    const auto small = hn::BitCast(
        wide_tag, hn::Sub(hn::BitCast(PartTag(), hn::Add(digits, hn::Set(wide_tag, 121u << 23))),
                          hn::Set(PartTag(), 0x1p-6f)));
    auto bits = hn::IfThenElse(hn::Lt(magnitude, subnormals), small,
                               hn::Add(digits, hn::Set(wide_tag, 120u << 23)));
    bits = hn::IfThenElse(hn::Eq(magnitude, nan), hn::Set(wide_tag, 0x7fc00000u), bits);
    const auto sign = hn::ShiftLeft<24>(hn::AndNot(nan, codes));
    y.part[p] = hn::BitCast(PartTag(), hn::Or(bits, sign));
  }
  return y;
}

HWY_INLINE void store16(const F32x16& x, float* y) {
  TANDEM_FOR_PARTS hn::StoreU(x.part[p], PartTag(), y + p * kPartLanes);
}

// The rounding of to_bf16(): to nearest, ties to even, NaN quiet.
HWY_INLINE void store16(const F32x16& x, bf16* y) {
  const hn::Rebind<std::uint16_t, PartTag> half_tag;
  const hn::Rebind<std::uint32_t, PartTag> wide_tag;
  const hn::Rebind<std::int32_t, PartTag> signed_tag;
  TANDEM_FOR_PARTS {
    const auto u = hn::BitCast(wide_tag, x.part[p]);
    const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(wide_tag, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, hn::Set(wide_tag, 0x7fffu))));
    const auto quiet = hn::Or(hn::ShiftRight<16>(u), hn::Set(wide_tag, 0x40u));
    const auto ordered = hn::RebindMask(wide_tag, hn::Eq(x.part[p], x.part[p]));
    const auto bits = hn::IfThenElse(ordered, rounded, quiet);
    hn::StoreU(hn::DemoteTo(half_tag, hn::BitCast(signed_tag, bits)), half_tag,
               reinterpret_cast<std::uint16_t*>(y) + p * kPartLanes);
  }
}

// The first n < 16 elements, zeros behind them; nothing beyond them is touched.
template <class T>
HWY_INLINE F32x16 load16_n(const T* x, int n) {
  T buffer[kLanes] = {};
  std::memcpy(buffer, x, sizeof(T) * static_cast<std::size_t>(n));
  return load16(buffer);
}

template <class T>
HWY_INLINE void store16_n(const F32x16& x, T* y, int n) {
  T buffer[kLanes];
  store16(x, buffer);
  std::memcpy(y, buffer, sizeof(T) * static_cast<std::size_t>(n));
}

HWY_INLINE F32x16 add16(const F32x16& a, const F32x16& b) {
  F32x16 y;
  TANDEM_FOR_PARTS y.part[p] = hn::Add(a.part[p], b.part[p]);
  return y;
}

HWY_INLINE F32x16 sub16(const F32x16& a, const F32x16& b) {
  F32x16 y;
  TANDEM_FOR_PARTS y.part[p] = hn::Sub(a.part[p], b.part[p]);
  return y;
}

HWY_INLINE F32x16 mul16(const F32x16& a, const F32x16& b) {
  F32x16 y;
  TANDEM_FOR_PARTS y.part[p] = hn::Mul(a.part[p], b.part[p]);
  return y;
}

HWY_INLINE F32x16 div16(const F32x16& a, const F32x16& b) {
  F32x16 y;
  TANDEM_FOR_PARTS y.part[p] = hn::Div(a.part[p], b.part[p]);
  return y;
}

// Which operand a NaN yields differs between targets; callers keep NaN out or blend it in again.
HWY_INLINE F32x16 max16(const F32x16& a, const F32x16& b) {
  F32x16 y;
  TANDEM_FOR_PARTS y.part[p] = hn::Max(a.part[p], b.part[p]);
  return y;
}

HWY_INLINE F32x16 min16(const F32x16& a, const F32x16& b) {
  F32x16 y;
  TANDEM_FOR_PARTS y.part[p] = hn::Min(a.part[p], b.part[p]);
  return y;
}

// a where x is not NaN, otherwise b.
HWY_INLINE F32x16 if_ordered16(const F32x16& x, const F32x16& a, const F32x16& b) {
  F32x16 y;
  TANDEM_FOR_PARTS y.part[p] = hn::IfThenElse(hn::Eq(x.part[p], x.part[p]), a.part[p], b.part[p]);
  return y;
}

HWY_INLINE Part fused(const Part& a, const Part& b, const Part& c) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  // hn::MulAdd rounds twice here; std::fma rounds once on any machine, if slowly.
  float x[kPartLanes], y[kPartLanes], z[kPartLanes];
  hn::StoreU(a, PartTag(), x);
  hn::StoreU(b, PartTag(), y);
  hn::StoreU(c, PartTag(), z);
  for (int i = 0; i < kPartLanes; ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return hn::LoadU(PartTag(), z);
#else
  static_assert(HWY_NATIVE_FMA, "targets without fused multiply-add would sum differently");
  return hn::MulAdd(a, b, c);
#endif
}

// a * b + c, rounded once.
HWY_INLINE F32x16 fma16(const F32x16& a, const F32x16& b, const F32x16& c) {
  F32x16 y;
  TANDEM_FOR_PARTS y.part[p] = fused(a.part[p], b.part[p], c.part[p]);
  return y;
}

// Sums of `count` groups of 16 lanes: the binary tree l, l+8, then +4, +2, +1.
HWY_INLINE void reduce16(const float* lanes, int count, float* sums) {
  const hn::CappedTag<float, 4> quad;
  constexpr int kQuadLanes = static_cast<int>(hn::MaxLanes(quad));
  int i = 0;
  for (; i + 4 <= count; i += 4) {
    float quads[16];
    TANDEM_UNROLL for (int j = 0; j < 4; ++j) {
      const float* l = lanes + (i + j) * kLanes;
      TANDEM_UNROLL for (int p = 0; p < 4; p += kQuadLanes) {
        const auto even = hn::Add(hn::LoadU(quad, l + p), hn::LoadU(quad, l + p + 8));
        const auto odd = hn::Add(hn::LoadU(quad, l + p + 4), hn::LoadU(quad, l + p + 12));
        hn::StoreU(hn::Add(even, odd), quad, quads + 4 * j + p);
      }
    }
    TANDEM_UNROLL for (int p = 0; p < 4; p += kQuadLanes) {
      hn::Vec<decltype(quad)> q0, q1, q2, q3;
      hn::LoadInterleaved4(quad, quads + 4 * p, q0, q1, q2, q3);
      hn::StoreU(hn::Add(hn::Add(q0, q2), hn::Add(q1, q3)), quad, sums + i + p);
    }
  }
  for (; i < count; ++i) {
    const float* l = lanes + i * kLanes;
    float q[4];
    for (int j = 0; j < 4; ++j) q[j] = (l[j] + l[j + 8]) + (l[j + 4] + l[j + 12]);
    sums[i] = (q[0] + q[2]) + (q[1] + q[3]);
  }
}

HWY_INLINE float reduce16(const F32x16& x) {
  float lanes[kLanes];
  store16(x, lanes);
  float sum;
  reduce16(lanes, 1, &sum);
  return sum;
}

HWY_INLINE float reduce_max16(const F32x16& x) {
  float lanes[kLanes];
  store16(x, lanes);
  float largest = lanes[0];
  for (int i = 1; i < kLanes; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
  return largest;
}

// sum x_k^2 over n elements: lane k mod 16 in ascending k.
template <class T>
HWY_INLINE float sum_of_squares(const T* x, int n) {
  F32x16 sum = zero16();
  int k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    const F32x16 v = load16(x + k);
    sum = fma16(v, v, sum);
  }
  if (k < n) {
    const F32x16 v = load16_n(x + k, n - k);
    sum = fma16(v, v, sum);
  }
  return reduce16(sum);
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard, per target
