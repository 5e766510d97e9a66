// Parts of a softmax that blocks leave for each other in scratch memory, and how a block knows that
// all of them are there.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/attention_units.cuh"

namespace tandem::cuda {

// Four dimensions of a column, by one thread.
struct Quad {
  SoftmaxPart part;
  float4 value = {0, 0, 0, 0};

  __device__ __forceinline__ void add(const SoftmaxPart& more, const float4& values) {
    const Join factors = join(more, part);
    value.x = joined(factors, values.x, value.x);
    value.y = joined(factors, values.y, value.y);
    value.z = joined(factors, values.z, value.z);
    value.w = joined(factors, values.w, value.w);
  }
};

__device__ __forceinline__ void write_quad(const ops::PagedAttentionArgs& a,
                                           const GeneratedPlan& plan, const Unit& unit, int column,
                                           int d, const Quad& quad) {
  const std::int64_t row = unit.first_row + column / plan.heads_per_unit;
  const int head = unit.first_head + column % plan.heads_per_unit;
  write_pair(a, row, head, d, quad.value.x, quad.value.y, quad.part.sum);
  write_pair(a, row, head, d + 2, quad.value.z, quad.value.w, quad.part.sum);
}

// Where parts of a unit's columns lie in scratch memory: those of a bundle's spans by number, and
// after them their join.
struct Parts {
  float* first;  // of bundle 0 of scratch memory, [kBundleParts][columns][part_floats]
  int columns;
  int floats;  // of a part

  __device__ Parts(const ops::PagedAttentionArgs& a, const GeneratedPlan& plan)
      : first(static_cast<float*>(a.scratch)),
        columns(plan.rows_per_unit * plan.heads_per_unit),
        floats(part_floats(a.pages.head_dim)) {}

  __device__ __forceinline__ std::int64_t stride() const { return std::int64_t{columns} * floats; }
  __device__ __forceinline__ float* at(int bundle, int part, int column) const {
    return first + (std::int64_t{bundle} * kBundleParts + part) * stride() + column * floats;
  }
  static __device__ __forceinline__ void put(float* to, int d, const Quad& quad) {
    if (d == 0) *reinterpret_cast<float2*>(to) = make_float2(quad.part.max, quad.part.sum);
    *reinterpret_cast<float4*>(to + kPartHeader + d) = quad.value;
  }
  // `count` parts in ascending order. Other blocks have written them: past the first-level cache.
  static __device__ __forceinline__ Quad join_all(const float* from, std::int64_t stride, int count,
                                                  int d) {
    Quad quad;
    constexpr int kAtOnce = 8;
    for (int first = 0; first < count; first += kAtOnce) {
      float2 headers[kAtOnce];
      float4 values[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= count) continue;
        const float* part = from + (first + i) * stride;
        headers[i] = __ldcg(reinterpret_cast<const float2*>(part));
        values[i] = __ldcg(reinterpret_cast<const float4*>(part + kPartHeader + d));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i < count) quad.add({headers[i].x, headers[i].y}, values[i]);
      }
    }
    return quad;
  }
};

// Whether this block is the last of `expected` to come here. What the others wrote before can then
// be read. The counter is left at 0, for the next call.
__device__ inline bool last_to_arrive(unsigned* counter, int expected) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();  // all threads' parts have been written
  if (threadIdx.x == 0) {
    last = atomicAdd(counter, 1u) + 1u == static_cast<unsigned>(expected);
    if (last) atomicExch(counter, 0u);
    __threadfence();
  }
  __syncthreads();
  return last;
}

}  // namespace tandem::cuda
