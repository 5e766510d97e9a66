// Head norms, rotary embedding and the write of keys and values into their pages. Threads take
// rows; the angles of a row are computed once for all of its heads.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_prep.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/pages.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/ops/check.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {
namespace {

struct Rotation {
  float cos[ops::kMaxHeadDim / 2];
  float sin[ops::kMaxHeadDim / 2];
};

// y = rotate(norm(x)) of one head; y may have another storage type than x.
template <class TX, class TY>
void norm_and_rotate(const TX* x, const float* weight, float eps, int head_dim,
                     const Rotation& rotation, int rotary_dim, TY* y) {
  const float mean = sum_of_squares(x, head_dim) / static_cast<float>(head_dim);
  const F32x16 scale = set16(1.0f / std::sqrt(mean + eps));
  const F32x16 one = set16(1.0f);
  // Room for the whole last vector: the vectors behind a width that is no multiple of 16 are zeros.
  float normed[ops::kMaxHeadDim + kLanes];
  for (int i = 0; i < head_dim; i += kLanes) {
    const int n = head_dim - i < kLanes ? head_dim - i : kLanes;
    const F32x16 xs = n == kLanes ? load16(x + i) : load16_n(x + i, n);
    const F32x16 ws = n == kLanes ? load16(weight + i) : load16_n(weight + i, n);
    store16(mul16(mul16(xs, scale), add16(ws, one)), normed + i);
  }
  const int half = rotary_dim / 2;
  for (int j = 0; j < half; ++j) {
    const float a = normed[j], b = normed[j + half];
    normed[j] = a * rotation.cos[j] - b * rotation.sin[j];
    normed[j + half] = b * rotation.cos[j] + a * rotation.sin[j];
  }
  int i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) store16(load16(normed + i), y + i);
  if (i < head_dim) store16_n(load16(normed + i), y + i, head_dim - i);
}

template <class T>
HWY_INLINE void store_scalar(float x, T* y) {
  if constexpr (sizeof(T) == sizeof(float)) {
    *y = x;
  } else {
    *y = to_bf16(x);
  }
}

template <class T, class TPage>
void prep_row(const ops::AttentionPrepArgs& a, std::int64_t row) {
  const ops::KvPages& pages = a.pages;
  const int dim = pages.head_dim;
  Rotation rotation;
  const float position = static_cast<float>(a.batch.positions[row] + a.rope_offset);
  for (int j = 0; j < a.rotary_dim / 2; ++j) {
    const float angle = position * a.inv_freq[j];
    rotation.cos[j] = std::cos(angle);
    rotation.sin[j] = std::sin(angle);
  }
  for (int h = 0; h < a.num_heads; ++h) {
    const std::int64_t head = row * a.num_heads + h;
    norm_and_rotate(static_cast<const T*>(a.q_gate) + head * 2 * dim, a.q_norm, a.eps, dim,
                    rotation, a.rotary_dim, static_cast<T*>(a.q_out) + head * dim);
  }
  for (int h = 0; h < pages.num_kv_heads; ++h) {
    const std::int64_t head = row * pages.num_kv_heads + h;
    const std::int64_t entry =
        page_entry(a.batch, pages, a.batch.row_slots[row], a.batch.positions[row], h);
    norm_and_rotate(static_cast<const T*>(a.k) + head * dim, a.k_norm, a.eps, dim, rotation,
                    a.rotary_dim, static_cast<TPage*>(pages.k_pages) + entry);
    const T* v = static_cast<const T*>(a.v) + head * dim;
    TPage* v_entry = static_cast<TPage*>(pages.v_pages) + entry;
    for (int i = 0; i < dim; ++i) store_scalar(to_float(v[i]), v_entry + i);
  }
}

template <class T>
void prep_rows(const ops::AttentionPrepArgs& a, std::int64_t first, std::int64_t last) {
  for (std::int64_t r = first; r < last; ++r) {
    if (a.pages.dtype == DType::kF32) {
      prep_row<T, float>(a, r);
    } else {
      prep_row<T, bf16>(a, r);
    }
  }
}

void attention_prep_rows(const ops::AttentionPrepArgs& a, std::int64_t first, std::int64_t last) {
  if (a.dtype == DType::kF32) return prep_rows<float>(a, first, last);
  prep_rows<bf16>(a, first, last);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(attention_prep_rows);

void attention_prep(CpuBackend& backend, const ops::AttentionPrepArgs& args) {
  check_rows_have_pages(args.batch, args.pages);
  const auto rows = HWY_DYNAMIC_DISPATCH(attention_prep_rows);
  const std::int64_t width =
      std::int64_t{args.pages.head_dim} * (args.num_heads + 2 * args.pages.num_kv_heads);
  parallel_ranges(backend, args.batch.num_rows, rows_of_work(width),
                  [&](std::int64_t first, std::int64_t last, int) { rows(args, first, last); });
}

}  // namespace tandem::cpu
#endif  // HWY_ONCE
