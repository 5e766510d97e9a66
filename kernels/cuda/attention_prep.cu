// Head norms, rotary embedding and the write of keys and values into their pages: one warp for each
// query head, key head and value head of a row.
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

// y = rotate(norm(x)) of one head, by one warp; `normed` is its shared memory.
template <class TX, class TY>
__device__ void norm_and_rotate(const ops::AttentionPrepArgs& a, const TX* x, const float* weight,
                                float position, float* normed, TY* y) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int dim = a.pages.head_dim;
  float squares = 0;
  for (int i = lane; i < dim; i += kWarp) {
    const float value = load_float(x + i);
    squares = fmaf(value, value, squares);
  }
  const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(dim) + a.eps);
  for (int i = lane; i < dim; i += kWarp) {
    normed[i] = load_float(x + i) * scale * (1.0f + weight[i]);
  }
  __syncwarp();
  const int half = a.rotary_dim / 2;
  for (int i = lane; i < dim; i += kWarp) {
    float value = normed[i];
    if (i < a.rotary_dim) {
      const int j = i < half ? i : i - half;
      float sine, cosine;
      sincosf(position * a.inv_freq[j], &sine, &cosine);
      const float low = normed[j], high = normed[j + half];
      value = i < half ? low * cosine - high * sine : high * cosine + low * sine;
    }
    store_float(value, y + i);
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
  const auto position = static_cast<float>(index + a.rope_offset);
  int head = static_cast<int>(task % heads_per_row);
  if (head < a.num_heads) {
    const std::int64_t query = row * a.num_heads + head;
    norm_and_rotate(a, static_cast<const T*>(a.q_gate) + query * 2 * dim, a.q_norm, position,
                    normed[warp], static_cast<T*>(a.q_out) + query * dim);
    return;
  }
  head -= a.num_heads;
  const bool is_key = head < a.pages.num_kv_heads;
  if (!is_key) head -= a.pages.num_kv_heads;
  const std::int64_t source = (row * a.pages.num_kv_heads + head) * dim;
  const std::int64_t entry = page_entry(a.batch, a.pages, a.batch.row_slots[row], index, head);
  if (is_key) {
    norm_and_rotate(a, static_cast<const T*>(a.k) + source, a.k_norm, position, normed[warp],
                    static_cast<TPage*>(a.pages.k_pages) + entry);
    return;
  }
  const T* v = static_cast<const T*>(a.v) + source;
  TPage* v_entry = static_cast<TPage*>(a.pages.v_pages) + entry;
  for (int i = static_cast<int>(threadIdx.x % kWarp); i < dim; i += kWarp) {
    store_float(load_float(v + i), v_entry + i);
  }
}

}  // namespace

void attention_prep(CudaBackend& backend, const ops::AttentionPrepArgs& args) {
  const std::int64_t tasks =
      std::int64_t{args.batch.num_rows} * (args.num_heads + 2 * args.pages.num_kv_heads);
  with_float_type(args.dtype, [&](auto type) {
    with_float_type(args.pages.dtype, [&](auto page) {
      launch_overlapping(backend, attention_prep_kernel<decltype(type), decltype(page)>,
                         blocks_for(tasks, kWarps), kWarps * kWarp, 0, args);
    });
  });
}

}  // namespace tandem::cuda
