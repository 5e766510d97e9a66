// What happens between the q/k/v projections of gated attention and the attention itself.
#pragma once

#include <cstdint>

#include "base/types.h"
#include "kernels/backend.h"
#include "kernels/ops/batch_view.h"
#include "kernels/ops/kv_pages.h"

namespace tandem::ops {

// Per head: RMSNorm (zero-centred) of q and k, then rotary embedding of the first `rotary_dim`
// dimensions (rotate-half pairing j, j + rotary_dim/2; Su et al. 2021), fp32 inside, one rounding.
// Rows of v and of the normed, rotated k go to the pages at index positions[r]; FP8 codes are made
// of the fp32 values. What is stored depends on the row's own values only.
//   angle = (positions[r] + rope_offset) * inv_freq[j], in fp32
struct AttentionPrepArgs {
  BatchView batch;
  const void* q_gate = nullptr;   // [rows, num_heads, 2 * head_dim]: per head query, then gate
  const void* k = nullptr;        // [rows, num_kv_heads, head_dim]
  const void* v = nullptr;        // [rows, num_kv_heads, head_dim]
  DType dtype = DType::kBF16;     // of q_gate, k, v, q_out
  const float* q_norm = nullptr;  // [head_dim]
  const float* k_norm = nullptr;  // [head_dim]
  float eps = 1e-6f;
  const float* inv_freq = nullptr;  // [rotary_dim / 2]
  int rotary_dim = 0;
  int rope_offset = 0;
  int num_heads = 0;      // of this rank
  void* q_out = nullptr;  // [rows, num_heads, head_dim]
  KvPages pages;
};

void attention_prep(Backend& backend, const AttentionPrepArgs& args);

}  // namespace tandem::ops
