// What happens between the q/k/v projections of gated attention and the attention itself.
#pragma once

#include <cstdint>

#include "base/types.h"
#include "kernels/backend.h"
#include "kernels/ops/batch_view.h"

namespace tandem::ops {

// Pages of one attention layer. Two planes of the same layout.
//   k_pages, v_pages: [num_pages, num_kv_heads, page_tokens, head_dim], BF16 or F32
struct KvPages {
  void* k_pages = nullptr;
  void* v_pages = nullptr;
  DType dtype = DType::kBF16;
  int num_pages = 0;
  int num_kv_heads = 0;  // of this rank
  int page_tokens = 0;
  int head_dim = 0;
};

// Per head: RMSNorm (zero-centred) of q and k, then rotary embedding of the first `rotary_dim`
// dimensions (rotate-half pairing j, j + rotary_dim/2; Su et al. 2021), fp32 inside, one rounding.
// Rows of v and of the normed, rotated k go to the pages at index positions[r].
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
