// What both orders of the gated delta rule share on the device: gates, normed heads, places.
#pragma once

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/ops/gated_delta_rule.h"
#include "kernels/ops/limits.h"

namespace tandem::cuda {

struct GdnGate {
  float g = 0;
  float beta = 0;
};

__device__ __forceinline__ GdnGate gate_of(float a, float b, float a_log, float dt_bias) {
  return {-expf(a_log) * softplus(a + dt_bias), sigmoid(b)};
}

__device__ __forceinline__ GdnGate gate_of_row(const ops::GatedDeltaRuleArgs& a, std::int64_t row,
                                               int head) {
  const std::int64_t i = row * a.shape.num_v_heads + head;
  return gate_of(a.a[i], a.b[i], a.a_log[head], a.dt_bias[head]);
}

// The layout of GdnState::round_gates, [.., 2, num_v_heads].
__device__ __forceinline__ GdnGate recorded_gate(const ops::GatedDeltaRuleArgs& a,
                                                 std::int64_t record, int head) {
  const float* at = a.state.round_gates + record * 2 * a.shape.num_v_heads;
  return {at[head], at[a.shape.num_v_heads + head]};
}

// Offsets in elements of a value head's q, k and v inside one row of qkv.
struct GdnHead {
  std::int64_t q = 0, k = 0, v = 0;
};

__device__ __forceinline__ GdnHead gdn_head(const ops::GdnShape& shape, int v_head) {
  const int k_head = v_head / (shape.num_v_heads / shape.num_k_heads);
  const std::int64_t keys = std::int64_t{shape.num_k_heads} * shape.k_dim;
  return {std::int64_t{k_head} * shape.k_dim, keys + std::int64_t{k_head} * shape.k_dim,
          2 * keys + std::int64_t{v_head} * shape.v_dim};
}

// rsqrt(sum x^2 + 1e-6), by one warp.
template <class T>
__device__ __forceinline__ float norm_scale(const T* x, int n) {
  float squares = 0;
  for (int i = static_cast<int>(threadIdx.x % kWarp); i < n; i += kWarp) {
    const float value = load_float(x + i);
    squares = fmaf(value, value, squares);
  }
  return 1.0f / sqrtf(warp_sum(squares) + 1e-6f);
}

__host__ __device__ __forceinline__ float query_factor(int k_dim) {
  return 1.0f / sqrtf(static_cast<float>(k_dim));
}

// The rows of a slot's open block as they came, per value head; ops::gdn_open_block_floats() counts
// them. From these the block's rows can be redone.
struct OpenBlock {
  float* k = nullptr;     // [64, k_dim]
  float* v = nullptr;     // [64, v_dim]
  float* g = nullptr;     // [64]
  float* beta = nullptr;  // [64]
};

__device__ __forceinline__ OpenBlock open_block_of(const ops::GatedDeltaRuleArgs& a, int slot,
                                                   int v_head) {
  const ops::GdnShape& shape = a.shape;
  const std::int64_t per_head = std::int64_t{ops::kGdnBlock} * (shape.k_dim + shape.v_dim + 2);
  float* base = a.state.open_block + (std::int64_t{slot} * shape.num_v_heads + v_head) * per_head;
  float* v = base + ops::kGdnBlock * shape.k_dim;
  float* g = v + ops::kGdnBlock * shape.v_dim;
  return {base, v, g, g + ops::kGdnBlock};
}

void gated_delta_recurrent(const CudaBackend& backend, const ops::GatedDeltaRuleArgs& args);
void gated_delta_blocks(const CudaBackend& backend, const ops::GatedDeltaRuleArgs& args);
std::size_t gated_delta_blocks_scratch_bytes(const ops::GdnShape& shape, int max_rows);

}  // namespace tandem::cuda
