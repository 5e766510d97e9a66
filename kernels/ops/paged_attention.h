// Causal softmax attention over paged keys and values, grouped queries, optional output gate.
//   s_j = (q . k_j) * scale,  first_index <= j <= positions[row];   o = sum softmax(s)_j v_j
//   out = o * sigmoid(gate)   when a gate is given
// The context is reduced in parts whose borders are fixed cache indices; inside a part and over the
// parts the order is fixed, so a row's value depends on its own query and its own keys only: not on
// the page size, the other rows, or the rows of its segment. On a GPU the classes of rows have
// orders of their own.
// What a GPU's call enqueues depends on the arguments and on num_rows, num_segments and the span of
// the page table; positions, slots, segments and page ids are read when it runs, so a recorded call
// may be replayed after they have changed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/types.h"
#include "kernels/backend.h"
#include "kernels/ops/attention_prep.h"
#include "kernels/ops/batch_view.h"

namespace tandem::ops {

// Tokens of a part, where a backend has parts of one length.
inline constexpr int kAttentionPartition = 256;

struct PagedAttentionArgs {
  BatchView batch;
  const void* q = nullptr;  // [rows, num_heads, head_dim]
  // Gate of row r, head h, dimension d at gate[(r * num_heads + h) * gate_head_stride + d];
  // nullptr: no gate.
  const void* gate = nullptr;
  std::int64_t gate_head_stride = 0;
  DType dtype = DType::kBF16;  // of q, gate, out
  int num_heads = 0;           // of this rank; head h reads KV head h / (num_heads / num_kv_heads)
  float scale = 1.0f;
  int first_index = 0;  // smallest cache index that holds an entry; a row that sees none gives 0
  KvPages pages;
  void* out = nullptr;  // [rows, num_heads, head_dim]
  // Lets a device share one row's context among its processors. Less than
  // paged_attention_scratch_bytes() of the call, or none, costs time and changes no bit.
  void* scratch = nullptr;
  std::size_t scratch_bytes = 0;
};

// For calls of at most max_rows rows whose page tables span at most max_context tokens. 0 on
// backends that need none.
std::size_t paged_attention_scratch_bytes(const Backend& backend, int num_heads, int head_dim,
                                          int max_rows, std::int64_t max_context);

void paged_attention(Backend& backend, const PagedAttentionArgs& args);

}  // namespace tandem::ops
