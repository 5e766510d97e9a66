// The norm and output gate behind the delta rule. Threads take (row, head) pairs.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gated_rms_norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {
namespace {

// w * (o * scale) * act(z)
template <ops::GateActivation kActivation>
HWY_INLINE F32x16 gated16(const F32x16& o, const F32x16& z, const F32x16& w, float scale) {
  const F32x16 gate = kActivation == ops::GateActivation::kSilu ? silu16(z) : sigmoid16(z);
  return mul16(mul16(w, mul16(o, set16(scale))), gate);
}

template <class T, ops::GateActivation kActivation>
void norm_heads(const ops::GatedRmsNormArgs& a, std::int64_t first, std::int64_t last) {
  for (std::int64_t h = first; h < last; ++h) {
    const float* o = a.o + h * a.width;
    const T* z = static_cast<const T*>(a.z) + h * a.width;
    T* y = static_cast<T*>(a.y) + h * a.width;
    const float mean = sum_of_squares(o, a.width) / static_cast<float>(a.width);
    const float scale = 1.0f / std::sqrt(mean + a.eps);
    int i = 0;
    for (; i + kLanes <= a.width; i += kLanes) {
      store16(gated16<kActivation>(load16(o + i), load16(z + i), load16(a.weight + i), scale),
              y + i);
    }
    if (i < a.width) {
      const int n = a.width - i;
      store16_n(gated16<kActivation>(load16_n(o + i, n), load16_n(z + i, n),
                                     load16_n(a.weight + i, n), scale),
                y + i, n);
    }
  }
}

template <class T>
void norm_heads_any_gate(const ops::GatedRmsNormArgs& a, std::int64_t first, std::int64_t last) {
  if (a.activation == ops::GateActivation::kSilu) {
    return norm_heads<T, ops::GateActivation::kSilu>(a, first, last);
  }
  norm_heads<T, ops::GateActivation::kSigmoid>(a, first, last);
}

void gated_rms_norm_heads(const ops::GatedRmsNormArgs& a, std::int64_t first, std::int64_t last) {
  if (a.dtype == DType::kF32) return norm_heads_any_gate<float>(a, first, last);
  norm_heads_any_gate<bf16>(a, first, last);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(gated_rms_norm_heads);

void gated_rms_norm(CpuBackend& backend, const ops::GatedRmsNormArgs& args) {
  const auto heads = HWY_DYNAMIC_DISPATCH(gated_rms_norm_heads);
  parallel_ranges(backend, std::int64_t{args.num_rows} * args.num_heads, rows_of_work(args.width),
                  [&](std::int64_t first, std::int64_t last, int) { heads(args, first, last); });
}

}  // namespace tandem::cpu
#endif  // HWY_ONCE
