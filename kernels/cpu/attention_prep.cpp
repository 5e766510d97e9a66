// Head norms, rotary embedding and the write of keys and values into their pages. Threads take
// rows; the angles of a row are computed once for all of its heads.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_prep.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <bit>
#include <cmath>
#include <cstdint>

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

// Room for the whole last vector: the vectors behind a width that is no multiple of 16 are zeros.
using HeadValues = float[ops::kMaxHeadDim + kLanes];

template <class T>
void load_head(const T* x, int head_dim, HeadValues& y) {
  for (int i = 0; i < head_dim; i += kLanes) {
    const int n = head_dim - i < kLanes ? head_dim - i : kLanes;
    store16(n == kLanes ? load16(x + i) : load16_n(x + i, n), y + i);
  }
}

template <class T>
void store_head(const HeadValues& x, int head_dim, T* y) {
  int i = 0;
  for (; i + kLanes <= head_dim; i += kLanes) store16(load16(x + i), y + i);
  if (i < head_dim) store16_n(load16(x + i), y + i, head_dim - i);
}

// y = rotate(norm(x)) of one head.
template <class T>
void norm_and_rotate(const T* x, const float* weight, float eps, int head_dim,
                     const Rotation& rotation, int rotary_dim, HeadValues& y) {
  const float mean = sum_of_squares(x, head_dim) / static_cast<float>(head_dim);
  const F32x16 scale = set16(1.0f / std::sqrt(mean + eps));
  const F32x16 one = set16(1.0f);
  for (int i = 0; i < head_dim; i += kLanes) {
    const int n = head_dim - i < kLanes ? head_dim - i : kLanes;
    const F32x16 xs = n == kLanes ? load16(x + i) : load16_n(x + i, n);
    const F32x16 ws = n == kLanes ? load16(weight + i) : load16_n(weight + i, n);
    store16(mul16(mul16(xs, scale), add16(ws, one)), y + i);
  }
  const int half = rotary_dim / 2;
  for (int j = 0; j < half; ++j) {
    const float a = y[j], b = y[j + half];
    y[j] = a * rotation.cos[j] - b * rotation.sin[j];
    y[j + half] = b * rotation.cos[j] + a * rotation.sin[j];
  }
}

// Magnitudes are ordered as their bits are, NaN above all.
float largest_magnitude(const HeadValues& x, int head_dim) {
  std::uint32_t largest = 0;
  for (int i = 0; i < head_dim; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return std::bit_cast<float>(largest);
}

// One head of one entry into a plane of pages.
void store_entry(const ops::KvPages& pages, void* plane, float* scales, std::int64_t row,
                 int kv_head, const HeadValues& x) {
  const int dim = pages.head_dim;
  switch (pages.format) {
    case ops::KvFormat::kF32:
      return store_head(x, dim, static_cast<float*>(plane) + row * dim);
    case ops::KvFormat::kBf16:
      return store_head(x, dim, static_cast<bf16*>(plane) + row * dim);
    case ops::KvFormat::kFp8Dynamic:
      scales[row] = ops::kv_entry_scale(largest_magnitude(x, dim));
      break;
    case ops::KvFormat::kFp8Static:
      break;
  }
  const float scale = row_scale(pages.format, scales, row, kv_head);
  e4m3* codes = static_cast<e4m3*>(plane) + row * dim;
  for (int i = 0; i < dim; ++i) codes[i] = to_e4m3(x[i] / scale);
}

template <class T>
void prep_row(const ops::AttentionPrepArgs& a, std::int64_t row) {
  const ops::KvPages& pages = a.pages;
  const int dim = pages.head_dim;
  if (a.batch.positions[row] == ops::kNoPosition) return;
  Rotation rotation;
  const float position = static_cast<float>(a.batch.positions[row] + a.rope_offset);
  for (int j = 0; j < a.rotary_dim / 2; ++j) {
    const float angle = position * a.inv_freq[j];
    rotation.cos[j] = std::cos(angle);
    rotation.sin[j] = std::sin(angle);
  }
  HeadValues values;
  for (int h = 0; h < a.num_heads; ++h) {
    const std::int64_t head = row * a.num_heads + h;
    norm_and_rotate(static_cast<const T*>(a.q_gate) + head * 2 * dim, a.q_norm, a.eps, dim,
                    rotation, a.rotary_dim, values);
    store_head(values, dim, static_cast<T*>(a.q_out) + head * dim);
  }
  for (int h = 0; h < pages.num_kv_heads; ++h) {
    const std::int64_t head = row * pages.num_kv_heads + h;
    const std::int64_t entry =
        page_row(a.batch, pages, a.batch.row_slots[row], a.batch.positions[row], h);
    norm_and_rotate(static_cast<const T*>(a.k) + head * dim, a.k_norm, a.eps, dim, rotation,
                    a.rotary_dim, values);
    store_entry(pages, pages.k_pages, pages.k_scales, entry, h, values);
    load_head(static_cast<const T*>(a.v) + head * dim, dim, values);
    store_entry(pages, pages.v_pages, pages.v_scales, entry, h, values);
  }
}

template <class T>
void prep_rows(const ops::AttentionPrepArgs& a, std::int64_t first, std::int64_t last) {
  for (std::int64_t r = first; r < last; ++r) prep_row<T>(a, r);
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
