// Gated DeltaNet's state update (Yang, Kautz, Hatamizadeh 2024, "Gated Delta Networks", eq. 10), in
// two orders of summation: recurrent for generated rows, in blocks of 64 for prompt rows.
//
//   beta = sigmoid(b)      g = -exp(A_log) * softplus(a + dt_bias)       (softplus(x) = x for x >
//   20) q^ = q * rsqrt(sum q^2 + 1e-6) / sqrt(dk)      k^ = k * rsqrt(sum k^2 + 1e-6) S <- exp(g)
//   S;   u = beta (v - S^T k^);   S <- S + k^ u^T;   o = S^T q^
//
// Value head h uses key head h / (num_v_heads / num_k_heads). All arithmetic in fp32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "kernels/backend.h"
#include "kernels/ops/batch_view.h"

namespace tandem::ops {

inline constexpr int kGdnBlock = 64;

struct GdnShape {
  int num_k_heads = 0;  // of this rank
  int num_v_heads = 0;  // of this rank
  int k_dim = 0;
  int v_dim = 0;
  constexpr std::int64_t channels() const {
    return 2LL * num_k_heads * k_dim + 1LL * num_v_heads * v_dim;
  }
};

// What a layer keeps for each sequence.
struct GdnState {
  float* s = nullptr;  // [max_sequences, num_v_heads, k_dim, v_dim]
  // Inputs of the running round, replayed onto S when the next round starts (lazy commit: S is
  // read and written once a round, whatever the draft depth, and a rejection costs nothing).
  void* round_qkv = nullptr;     // [max_sequences, max_round_rows, channels], activation dtype
  float* round_gates = nullptr;  // [max_sequences, max_round_rows, 2, num_v_heads]: g, beta
  int max_round_rows = 0;
  // Open block of a prompt whose chunks end inside a block of 64 (only when chunks may be shorter
  // than that; nullptr otherwise, and then every segment must start on a multiple of 64):
  // per sequence gdn_open_block_floats(shape) values, with which a backend goes on where it was: of
  // each of the block's rows so far a key, a value or pseudo-value, and its gates.
  float* open_block = nullptr;
};

// Number of floats of one sequence's open block.
std::int64_t gdn_open_block_floats(const GdnShape& shape);

struct GatedDeltaRuleArgs {
  BatchView batch;
  GdnShape shape;
  const void* qkv = nullptr;  // [rows, channels]: q heads, k heads, v heads (after the convolution)
  DType dtype = DType::kBF16;
  const float* a = nullptr;        // [rows, num_v_heads]
  const float* b = nullptr;        // [rows, num_v_heads]
  const float* a_log = nullptr;    // [num_v_heads]
  const float* dt_bias = nullptr;  // [num_v_heads]
  GdnState state;
  float* out = nullptr;     // [rows, num_v_heads, v_dim]
  void* scratch = nullptr;  // gated_delta_rule_scratch_bytes(...)
};

// Scratch of one call with at most max_rows rows.
std::size_t gated_delta_rule_scratch_bytes(const Backend& backend, const GdnShape& shape,
                                           int max_rows);

// Throws unless the arguments are valid; false if there is nothing to do.
bool check_gated_delta_rule(const GatedDeltaRuleArgs& args);

// kGenerated: first applies the slot's pending_rows accepted rows of the previous round to S and
// stores S, then runs the segment's rows on a copy and records their inputs for the next round.
// The arithmetic of a replayed row is that of its first pass, bit for bit.
//
// kPrompt (pending_rows[slot] == 0): the rule in blocks of 64 counted from position 0. Row i of a
// block that starts with state S, with c_i = sum of g up to i inside the block:
//   n_i = beta_i (v_i - e^{c_i} S^T k_i - sum_{j<i} e^{c_i - c_j} (k_i . k_j) n_j)
//   o_i = e^{c_i} S^T q_i + sum_{j<=i} e^{c_i - c_j} (q_i . k_j) n_j
// and after the block's last row  S <- e^{c_63} S + sum_j e^{c_63 - c_j} k_j n_j^T.  A block that
// ends with the prompt is folded at its last row. Where a chunk ends inside a block nothing is
// folded and the block stays open; the result does not depend on where the chunks end.
void gated_delta_rule(Backend& backend, const GatedDeltaRuleArgs& args);

}  // namespace tandem::ops
