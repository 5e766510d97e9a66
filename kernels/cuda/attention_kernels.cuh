// What the kernels of paged attention share: the softmax over a part of the context, and how parts
// are put together.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/ops/paged_attention.h"

namespace tandem::cuda {

// sum = sum_j exp(s_j - max) over a part; values beside it are sums of exp(s_j - max) v_j. The
// empty part is {-inf, 0} with values 0.
struct SoftmaxPart {
  float max = -kInfinity;
  float sum = 0;
};

// Factors of the values when a part joins what is there.
struct Join {
  float keep = 1, take = 0;
};

__device__ __forceinline__ Join join(const SoftmaxPart& part, SoftmaxPart& state) {
  if (part.sum == 0.0f) return {};  // nothing is seen there
  const float max = fmaxf(state.max, part.max);
  const Join factors{expf(state.max - max), expf(part.max - max)};
  state.max = max;
  state.sum = fmaf(part.sum, factors.take, state.sum * factors.keep);
  return factors;
}

__device__ __forceinline__ float joined(const Join& factors, float part, float state) {
  return fmaf(part, factors.take, state * factors.keep);
}

// Where a row's parts of one head lie in scratch memory: [rows, num_heads, spans, 2 + head_dim].
__device__ __forceinline__ float* span_at(const ops::PagedAttentionArgs& a, int num_spans_of_table,
                                          std::int64_t row, int head, int span) {
  return static_cast<float*>(a.scratch) +
         ((row * a.num_heads + head) * num_spans_of_table + span) * span_floats(a.pages.head_dim);
}

// One value of a finished row: normed, gated, stored. A row that sees no entry gives zeros.
template <class T>
__device__ __forceinline__ void write_value(const ops::PagedAttentionArgs& a, std::int64_t row,
                                            int head, int d, float value, float sum) {
  const std::int64_t index = row * a.num_heads + head;
  float o = value / (sum == 0.0f ? 1.0f : sum);
  if (a.gate != nullptr) {
    o *= sigmoid(load_float(static_cast<const T*>(a.gate) + index * a.gate_head_stride + d));
  }
  store_float(o, static_cast<T*>(a.out) + index * a.pages.head_dim + d);
}

void attention_tensor(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                      const AttentionPlan& plan);
void attention_plain(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                     const AttentionPlan& plan);

}  // namespace tandem::cuda
