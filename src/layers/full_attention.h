// Gated grouped-query attention (qwen.md, section 5): q and an output gate interleaved per head,
// per-head RMSNorm of q and k, partial rotary embedding, paged KV cache. Split by heads; where
// there are fewer KV heads than ranks, neighbouring ranks keep the same one.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/kv_scales.h"
#include "kernels/ops/attention_prep.h"
#include "kernels/ops/batch_view.h"
#include "layers/linear.h"

namespace tandem {

struct AttentionConfig {
  std::int64_t hidden = 0;
  std::int64_t num_heads = 0;     // of the whole model
  std::int64_t num_kv_heads = 0;  // of the whole model
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;
  double rope_theta = 0;
  double eps = 0;
  // Position of an entry in the rotary embedding, minus its index in the cache.
  int rope_offset = 0;
  int first_index = 0;  // smallest cache index that holds an entry
  ops::KvFormat kv_format = ops::KvFormat::kBf16;
  KvScales kv_scales = {};  // kFp8Static: of the whole model's KV heads
};

class FullAttention {
 public:
  // Tensors <prefix>{q,k,v,o}_proj.weight, <prefix>{q,k}_norm.weight. Pages are taken from
  // `allocator` for `shape`.
  FullAttention(WeightBinder& binder, PartAllocator& allocator, Backend* backend,
                const std::string& prefix, const AttentionConfig& config, const EngineShape& shape);

  void prepack_weights(Backend& backend);
  // Bytes of one page of this layer (K and V, scales of entries included) on this rank.
  static std::int64_t page_bytes(const AttentionConfig& config, const EngineShape& shape,
                                 TensorParallel tensor_parallel);

  // in [rows, hidden] -> out [rows, hidden] fp32, summed over ranks. Writes the rows' K and V.
  void forward(const LayerContext& context, const ops::BatchView& batch, const LayerInput& in,
               float* out) const;

 private:
  ops::KvPages take_pages(PartAllocator& allocator, Backend* backend, const EngineShape& shape,
                          TensorParallel tensor_parallel) const;

  AttentionConfig config_;
  int num_heads_;     // of this rank
  int num_kv_heads_;  // of this rank
  ColumnLinear q_;
  ColumnLinear k_;
  ColumnLinear v_;
  RowLinear o_;
  const float* q_norm_;       // [head_dim]
  const float* k_norm_;       // [head_dim]
  std::int64_t max_context_;  // tokens that a page table spans
  float* inv_freq_;           // [rotary_dim / 2]
  ops::KvPages pages_;
};

}  // namespace tandem
