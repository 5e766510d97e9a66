// Head norms, rotary embedding and the write of keys and values into their pages: one warp for each
// query head, key head and value head of a row.
#include <type_traits>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/pages.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/ops/limits.h"

namespace tandem::cuda {
namespace {

constexpr int kWarps = 4;

constexpr int kLaneValues = ops::kMaxHeadDim / kWarp;

// One head in a warp's registers: lane l has dimensions l, l + 32, ...; zeros beyond the last.
using HeadValues = float[kLaneValues];

template <class Function>
__device__ __forceinline__ void for_each_dim(int dim, const Function& function) {
#pragma unroll
  for (int j = 0; j < kLaneValues; ++j) {
    const int i = static_cast<int>(threadIdx.x % kWarp) + j * kWarp;
    if (i < dim) function(i, j);
  }
}

template <class T>
__device__ void load_head(const T* x, int dim, HeadValues& values) {
#pragma unroll
  for (float& value : values) value = 0;
  for_each_dim(dim, [&](int i, int j) { values[j] = load_float(x + i); });
}

template <class T>
__device__ void store_head(const HeadValues& values, int dim, T* y) {
  for_each_dim(dim, [&](int i, int j) { store_float(values[j], y + i); });
}

// values = rotate(norm(x)) of one head; `normed` is the warp's shared memory.
template <class T>
__device__ void norm_and_rotate(const ops::AttentionPrepArgs& a, const T* x, const float* weight,
                                float position, float* normed, HeadValues& values) {
  const int dim = a.pages.head_dim;
  load_head(x, dim, values);
  float squares = 0;
  for_each_dim(dim, [&](int, int j) { squares = fmaf(values[j], values[j], squares); });
  const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + a.eps);
  for_each_dim(dim, [&](int i, int j) { normed[i] = values[j] * scale * (1.0f + weight[i]); });
  __syncwarp();
  const int half = a.rotary_dim / 2;
  for_each_dim(dim, [&](int i, int j) {
    values[j] = normed[i];
    if (i >= a.rotary_dim) return;
    const int pair = i < half ? i : i - half;
    float sine, cosine;
    sincosf(position * a.inv_freq[pair], &sine, &cosine);
    const float low = normed[pair], high = normed[pair + half];
    values[j] = i < half ? low * cosine - high * sine : high * cosine + low * sine;
  });
}

// One head of one entry into a plane of pages.
template <class TPage>
__device__ void store_entry(const ops::KvPages& pages, void* plane, float* scales, std::int64_t row,
                            int kv_head, const HeadValues& values) {
  const int dim = pages.head_dim;
  TPage* entry = static_cast<TPage*>(plane) + row * dim;
  if constexpr (std::is_same_v<TPage, e4m3>) {
    float scale;
    if (pages.format == ops::KvFormat::kFp8Dynamic) {
      unsigned largest = 0;  // magnitudes are ordered as their bits are, NaN above all
#pragma unroll
      for (const float value : values) largest = max(largest, __float_as_uint(value) & 0x7fffffffu);
      scale = ops::kv_entry_scale(__uint_as_float(__reduce_max_sync(kAllLanes, largest)));
      if (threadIdx.x % kWarp == 0) scales[row] = scale;
    } else {
      scale = scales[kv_head];
    }
    for_each_dim(dim, [&](int i, int j) { entry[i] = to_e4m3(values[j] / scale); });
  } else {
    store_head(values, dim, entry);
  }
}

template <class T, class TPage>
__global__ void __launch_bounds__(kWarps* kWarp) attention_prep_kernel(ops::AttentionPrepArgs a) {
  allow_next_kernel();
  wait_for_previous_kernel();
  __shared__ float normed[kWarps][ops::kMaxHeadDim];
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int heads_per_row = a.num_heads + 2 * a.pages.num_kv_heads;
  const std::int64_t task = std::int64_t{blockIdx.x} * kWarps + warp;
  const std::int64_t row = task / heads_per_row;
  if (row >= a.batch.num_rows) return;
  const int dim = a.pages.head_dim;
  const std::int32_t index = a.batch.positions[row];
  if (index == ops::kNoPosition) return;
  const auto position = static_cast<float>(index + a.rope_offset);
  HeadValues values;
  int head = static_cast<int>(task % heads_per_row);
  if (head < a.num_heads) {
    const std::int64_t query = row * a.num_heads + head;
    norm_and_rotate(a, static_cast<const T*>(a.q_gate) + query * 2 * dim, a.q_norm, position,
                    normed[warp], values);
    return store_head(values, dim, static_cast<T*>(a.q_out) + query * dim);
  }
  head -= a.num_heads;
  const bool is_key = head < a.pages.num_kv_heads;
  if (!is_key) head -= a.pages.num_kv_heads;
  const std::int64_t source = (row * a.pages.num_kv_heads + head) * dim;
  const std::int64_t entry = entry_row(a.batch, a.pages, a.batch.row_slots[row], index, head);
  if (is_key) {
    norm_and_rotate(a, static_cast<const T*>(a.k) + source, a.k_norm, position, normed[warp],
                    values);
    return store_entry<TPage>(a.pages, a.pages.k_pages, a.pages.k_scales, entry, head, values);
  }
  load_head(static_cast<const T*>(a.v) + source, dim, values);
  store_entry<TPage>(a.pages, a.pages.v_pages, a.pages.v_scales, entry, head, values);
}

}  // namespace

void attention_prep(CudaBackend& backend, const ops::AttentionPrepArgs& args) {
  const std::int64_t tasks =
      std::int64_t{args.batch.num_rows} * (args.num_heads + 2 * args.pages.num_kv_heads);
  with_float_type(args.dtype, [&](auto type) {
    with_page_type(args.pages.format, [&](auto page) {
      launch_overlapping(backend, attention_prep_kernel<decltype(type), decltype(page)>,
                         blocks_for(tasks, kWarps), kWarps * kWarp, 0, args);
    });
  });
}

}  // namespace tandem::cuda
