// What the kernels of paged attention share on the device: the softmax over a part of the context,
// how parts are put together, how finished rows are written, and where keys and values lie.
//
// Scores are taken in units of log 2: s = (q . k) * scale / ln 2, so that exp(s ln 2) is 2^s.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/device/fragments.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/ops/paged_attention.h"

namespace tandem::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;

// sum = sum_j 2^(s_j - max) over a part; values beside it are sums of 2^(s_j - max) v_j. The empty
// part is {-inf, 0} with values 0.
struct SoftmaxPart {
  float max = -kInfinity;
  float sum = 0;
};

// Factors of the values when a part joins what is there.
struct Join {
  float keep = 1, take = 0;
};

// Without a branch, so that factors of several parts are worked out side by side. An empty part
// keeps all and takes nothing; relative to 0 where both are, as -inf less itself is no number.
__device__ __forceinline__ Join join(const SoftmaxPart& part, SoftmaxPart& state) {
  const float max = fmaxf(state.max, part.max);
  const float relative_to = max == -kInfinity ? 0.0f : max;
  const Join factors{exp2f(state.max - relative_to), exp2f(part.max - relative_to)};
  state.max = max;
  state.sum = fmaf(part.sum, factors.take, state.sum * factors.keep);
  return factors;
}

__device__ __forceinline__ float joined(const Join& factors, float part, float state) {
  return fmaf(part, factors.take, state * factors.keep);
}

// A running softmax takes new scores, the largest of which is `largest`: the factor of what is
// there. Afterwards base(state) is what scores are taken relative to.
__device__ __forceinline__ float raise(float largest, SoftmaxPart& state) {
  const float max = fmaxf(state.max, largest);
  if (max == -kInfinity) return 1.0f;
  const float factor = exp2f(state.max - max);
  state.max = max;
  return factor;
}

// Finite, so that 2^(-inf - base) is 0 also while nothing has been seen.
__device__ __forceinline__ float base(const SoftmaxPart& state) {
  return state.max == -kInfinity ? 0.0f : state.max;
}

// One value of a finished row: normed, gated. A row that sees no entry gives zeros.
__device__ __forceinline__ float finished(float value, float sum) {
  return value / (sum == 0.0f ? 1.0f : sum);
}

template <class T>
__device__ __forceinline__ void write_value(const ops::PagedAttentionArgs& a, std::int64_t row,
                                            int head, int d, float value, float sum) {
  const std::int64_t index = row * a.num_heads + head;
  float o = finished(value, sum);
  if (a.gate != nullptr) {
    o *= sigmoid(load_float(static_cast<const T*>(a.gate) + index * a.gate_head_stride + d));
  }
  store_float(o, static_cast<T*>(a.out) + index * a.pages.head_dim + d);
}

// Two neighbours of BF16, the first at an even d.
__device__ __forceinline__ void write_pair(const ops::PagedAttentionArgs& a, std::int64_t row,
                                           int head, int d, float first, float second, float sum) {
  const std::int64_t index = row * a.num_heads + head;
  float low = finished(first, sum), high = finished(second, sum);
  if (a.gate != nullptr) {
    const auto* gate = static_cast<const bf16*>(a.gate) + index * a.gate_head_stride + d;
    low *= sigmoid(load_float(gate));
    high *= sigmoid(load_float(gate + 1));
  }
  auto* out = static_cast<bf16*>(a.out) + index * a.pages.head_dim + d;
  *reinterpret_cast<uint32_t*>(out) = uint32_t{to_bf16(low).bits} | uint32_t{to_bf16(high).bits}
                                                                        << 16;
}

// Row of a plane of pages, taken as [num_pages * num_kv_heads * page_tokens, head_dim], that holds
// cache index `index` of a slot: 32 bits, which the host has checked to be enough.
__device__ __forceinline__ uint32_t page_row(const ops::BatchView& batch, const ops::KvPages& pages,
                                             int slot, int index, int kv_head) {
  const int page_in_table = index / pages.page_tokens;
  const auto page = static_cast<uint32_t>(
      __ldg(batch.page_table + std::int64_t{slot} * batch.pages_per_sequence + page_in_table));
  return (page * static_cast<uint32_t>(pages.num_kv_heads) + static_cast<uint32_t>(kv_head)) *
             static_cast<uint32_t>(pages.page_tokens) +
         static_cast<uint32_t>(index - page_in_table * pages.page_tokens);
}

// Sum of `x` over the lanes up to this one.
__device__ __forceinline__ int sum_to_lane(int x) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int below = __shfl_up_sync(kAllLanes, x, static_cast<unsigned>(distance));
    if (lane >= distance) x += below;
  }
  return x;
}

}  // namespace tandem::cuda
