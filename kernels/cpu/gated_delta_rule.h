// What the two orders of the gated delta rule share: the gates of a call, and where a head's inputs
// lie. The recurrence is in gated_delta_recurrent.cpp, the blocks of 64 in gated_delta_blocks.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/gated_delta_rule.h"

namespace tandem::cpu {

// g and beta of one row and value head.
struct GdnGate {
  float g = 0;
  float beta = 0;
};

// gates[row * 2 * num_v_heads + {0, num_v_heads} + head]: the layout of GdnState::round_gates.
inline GdnGate gate_of(const float* gates, std::int64_t row, int num_v_heads, int head) {
  const float* at = gates + row * 2 * num_v_heads;
  return {at[head], at[num_v_heads + head]};
}

// Offsets in elements of a value head's q, k and v inside one row of qkv.
struct GdnHead {
  int v_head = 0;
  std::int64_t q = 0, k = 0, v = 0;
};

inline GdnHead gdn_head(const ops::GdnShape& shape, int v_head) {
  const int k_head = v_head / (shape.num_v_heads / shape.num_k_heads);
  const std::int64_t keys = std::int64_t{shape.num_k_heads} * shape.k_dim;
  return {v_head, std::int64_t{k_head} * shape.k_dim, keys + std::int64_t{k_head} * shape.k_dim,
          2 * keys + std::int64_t{v_head} * shape.v_dim};
}

// One value head of one segment. `gates` are those of the call's rows, `scratch` one thread's.
void gated_delta_recurrent(const ops::GatedDeltaRuleArgs& args, const float* gates,
                           const ops::Segment& segment, int v_head, std::byte* scratch);
void gated_delta_blocks(const ops::GatedDeltaRuleArgs& args, const float* gates,
                        const ops::Segment& segment, int v_head, std::byte* scratch);

}  // namespace tandem::cpu
