// SiLU gating, row gather and scatter, rounding to storage type.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {
namespace {

template <class T>
void silu_mul_elements(const ops::SiluMulArgs& a, std::int64_t first, std::int64_t last) {
  const T* gate = static_cast<const T*>(a.gate);
  const T* up = static_cast<const T*>(a.up);
  T* y = static_cast<T*>(a.y);
  std::int64_t i = first;
  for (; i + kLanes <= last; i += kLanes) {
    store16(mul16(silu16(load16(gate + i)), load16(up + i)), y + i);
  }
  if (i < last) {
    const int n = static_cast<int>(last - i);
    store16_n(mul16(silu16(load16_n(gate + i, n)), load16_n(up + i, n)), y + i, n);
  }
}

void silu_mul_range(const ops::SiluMulArgs& a, std::int64_t first, std::int64_t last) {
  if (a.dtype == DType::kF32) return silu_mul_elements<float>(a, first, last);
  silu_mul_elements<bf16>(a, first, last);
}

void round_range(const ops::CastArgs& a, std::int64_t first, std::int64_t last) {
  bf16* y = static_cast<bf16*>(a.y);
  std::int64_t i = first;
  for (; i + kLanes <= last; i += kLanes) store16(load16(a.x + i), y + i);
  for (; i < last; ++i) y[i] = to_bf16(a.x[i]);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(silu_mul_range);
HWY_EXPORT(round_range);

namespace {
constexpr std::int64_t kGrain = 16384;
}

void silu_mul(CpuBackend& backend, const ops::SiluMulArgs& args) {
  const auto range = HWY_DYNAMIC_DISPATCH(silu_mul_range);
  parallel_ranges(backend, std::int64_t{args.num_rows} * args.width, kGrain,
                  [&](std::int64_t first, std::int64_t last, int) { range(args, first, last); });
}

void cast(CpuBackend& backend, const ops::CastArgs& args) {
  if (args.y_dtype == DType::kF32) {
    if (args.y != args.x) {
      backend.copy(args.y, args.x, sizeof(float) * static_cast<std::size_t>(args.count));
    }
    return;
  }
  const auto range = HWY_DYNAMIC_DISPATCH(round_range);
  parallel_ranges(backend, args.count, kGrain,
                  [&](std::int64_t first, std::int64_t last, int) { range(args, first, last); });
}

void gather_rows(CpuBackend& backend, const ops::GatherRowsArgs& args) {
  const auto* x = static_cast<const std::byte*>(args.x);
  auto* y = static_cast<std::byte*>(args.y);
  parallel_ranges(backend, args.num_rows, rows_of_work(args.row_bytes),
                  [&](std::int64_t first, std::int64_t last, int) {
                    for (std::int64_t r = first; r < last; ++r) {
                      std::memcpy(y + r * args.y_stride_bytes, x + args.rows[r] * args.row_bytes,
                                  static_cast<std::size_t>(args.row_bytes));
                    }
                  });
}

void scatter_rows(CpuBackend& backend, const ops::ScatterRowsArgs& args) {
  const auto* x = static_cast<const std::byte*>(args.x);
  auto* y = static_cast<std::byte*>(args.y);
  parallel_ranges(backend, args.num_rows, rows_of_work(args.row_bytes),
                  [&](std::int64_t first, std::int64_t last, int) {
                    for (std::int64_t r = first; r < last; ++r) {
                      std::memcpy(y + args.rows[r] * args.row_bytes, x + r * args.row_bytes,
                                  static_cast<std::size_t>(args.row_bytes));
                    }
                  });
}

void add(CpuBackend& backend, const ops::AddArgs& args) {
  parallel_ranges(backend, args.count, kGrain, [&](std::int64_t first, std::int64_t last, int) {
    for (std::int64_t i = first; i < last; ++i) args.y[i] += args.x[i];
  });
}

}  // namespace tandem::cpu
#endif  // HWY_ONCE
