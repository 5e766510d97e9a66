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

// What norms and rotates a head and no kernel writes: in registers before the row is there.
struct HeadWeights {
  HeadValues norm;
  float inv_freq;  // of pair `lane`

  __device__ HeadWeights(const ops::AttentionPrepArgs& a, const float* weight) {
    const int pair = static_cast<int>(threadIdx.x % kWarp);
    load_head(weight, a.pages.head_dim, norm);
    inv_freq = pair < a.rotary_dim / 2 ? a.inv_freq[pair] : 0.0f;
  }
};

// values = rotate(norm(values)) of one head; `normed` is the warp's shared memory.
__device__ __forceinline__ void norm_and_rotate(const ops::AttentionPrepArgs& a,
                                                const HeadWeights& weights, float position,
                                                float* normed, HeadValues& values) {
  const int dim = a.pages.head_dim, lane = static_cast<int>(threadIdx.x % kWarp);
  float squares = 0;
  for_each_dim(dim, [&](int, int j) { squares = fmaf(values[j], values[j], squares); });
  const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + a.eps);
  for_each_dim(dim,
               [&](int i, int j) { normed[i] = values[j] * scale * (1.0f + weights.norm[j]); });
  __syncwarp();
  const int half = a.rotary_dim / 2;
  // A loop: sine and cosine are long, and fetched from memory once a layer.
#pragma unroll 1
  for (int pair = lane; pair < half; pair += kWarp) {
    float sine, cosine;
    sincosf(position * (pair == lane ? weights.inv_freq : a.inv_freq[pair]), &sine, &cosine);
    const float low = normed[pair], high = normed[pair + half];
    normed[pair] = low * cosine - high * sine;
    normed[pair + half] = high * cosine + low * sine;
  }
  __syncwarp();
  for_each_dim(dim, [&](int i, int j) { values[j] = normed[i]; });
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

// Whose head a warp prepares.
enum class HeadOf { kQuery, kKey, kValue };

template <class T, class TPage>
__global__ void __launch_bounds__(kWarps* kWarp)
    attention_prep_kernel(const __grid_constant__ ops::AttentionPrepArgs a) {
  allow_next_kernel();
  __shared__ float normed[kWarps][ops::kMaxHeadDim];
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int kv_heads = a.pages.num_kv_heads;
  const int heads_per_row = a.num_heads + 2 * kv_heads;
  const std::int64_t task = std::int64_t{blockIdx.x} * kWarps + warp;
  const std::int64_t row = task / heads_per_row;
  if (row >= a.batch.num_rows) return;
  int head = static_cast<int>(task - row * heads_per_row);
  HeadOf of = HeadOf::kQuery;
  if (head >= a.num_heads) {
    of = head < a.num_heads + kv_heads ? HeadOf::kKey : HeadOf::kValue;
    head -= of == HeadOf::kKey ? a.num_heads : a.num_heads + kv_heads;
  }
  const int dim = a.pages.head_dim;
  const HeadWeights weights(a, of == HeadOf::kQuery ? a.q_norm : a.k_norm);
  wait_for_previous_kernel();

  const std::int64_t query = row * a.num_heads + head, entry_head = row * kv_heads + head;
  const T* source = of == HeadOf::kQuery
                        ? static_cast<const T*>(a.q_gate) + query * 2 * dim
                        : static_cast<const T*>(of == HeadOf::kKey ? a.k : a.v) + entry_head * dim;
  HeadValues values;
  load_head(source, dim, values);
  const std::int32_t index = a.batch.positions[row];
  const std::int32_t slot = a.batch.row_slots[row];
  if (index == ops::kNoPosition) return;
  if (of != HeadOf::kValue) {
    norm_and_rotate(a, weights, static_cast<float>(index + a.rope_offset), normed[warp], values);
  }
  if (of == HeadOf::kQuery) return store_head(values, dim, static_cast<T*>(a.q_out) + query * dim);
  const bool is_key = of == HeadOf::kKey;
  store_entry<TPage>(a.pages, is_key ? a.pages.k_pages : a.pages.v_pages,
                     is_key ? a.pages.k_scales : a.pages.v_scales,
                     entry_row(a.batch, a.pages, slot, index, head), head, values);
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
