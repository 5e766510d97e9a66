#include "layers/full_attention.h"

#include <cmath>
#include <vector>

#include "kernels/ops/paged_attention.h"

namespace tandem {
namespace {

std::vector<RowRange> head_rows(TensorParallel tp, std::int64_t heads, std::int64_t rows_per_head) {
  return {split_heads(heads, rows_per_head, tp.rank, tp.size)};
}

int local_heads(TensorParallel tp, std::int64_t heads) {
  return static_cast<int>(split_heads(heads, 1, tp.rank, tp.size).count());
}

// inv_freq_j = theta^(-2j / rotary_dim), computed in fp32 as the reference does.
std::vector<float> inverse_frequencies(const AttentionConfig& config) {
  std::vector<float> out;
  for (std::int64_t j = 0; j < config.rotary_dim / 2; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(config.rotary_dim);
    out.push_back(1.0f / std::pow(static_cast<float>(config.rope_theta), exponent));
  }
  return out;
}

}  // namespace

FullAttention::FullAttention(WeightBinder& binder, PartAllocator& allocator, Backend* backend,
                             const std::string& prefix, const AttentionConfig& config,
                             const EngineShape& shape)
    : config_(config),
      num_heads_(local_heads(binder.tensor_parallel(), config.num_heads)),
      num_kv_heads_(local_heads(binder.tensor_parallel(), config.num_kv_heads)),
      q_(binder, prefix + "q_proj.weight", config.num_heads * 2 * config.head_dim, config.hidden,
         head_rows(binder.tensor_parallel(), config.num_heads, 2 * config.head_dim)),
      k_(binder, prefix + "k_proj.weight", config.num_kv_heads * config.head_dim, config.hidden,
         head_rows(binder.tensor_parallel(), config.num_kv_heads, config.head_dim)),
      v_(binder, prefix + "v_proj.weight", config.num_kv_heads * config.head_dim, config.hidden,
         head_rows(binder.tensor_parallel(), config.num_kv_heads, config.head_dim)),
      o_(binder, prefix + "o_proj.weight", config.hidden, config.num_heads * config.head_dim,
         config.num_heads),
      q_norm_(binder.vector_f32(prefix + "q_norm.weight", {config.head_dim})),
      k_norm_(binder.vector_f32(prefix + "k_norm.weight", {config.head_dim})),
      max_context_(std::int64_t{shape.pages_per_sequence} * shape.page_tokens),
      inv_freq_(allocator.take_array<float>(parts::kWeights, config.rotary_dim / 2)) {
  const auto plane_bytes = static_cast<std::size_t>(
      page_bytes(config, shape, binder.tensor_parallel()) / 2 * shape.num_pages);
  pages_ = {.k_pages = allocator.take(parts::kKvPages, plane_bytes),
            .v_pages = allocator.take(parts::kKvPages, plane_bytes),
            .dtype = shape.kv_dtype,
            .num_pages = shape.num_pages,
            .num_kv_heads = num_kv_heads_,
            .page_tokens = shape.page_tokens,
            .head_dim = static_cast<int>(config.head_dim)};
  if (inv_freq_ != nullptr) {
    const auto table = inverse_frequencies(config);
    backend->copy(inv_freq_, table.data(), table.size() * sizeof(float));
  }
}

std::int64_t FullAttention::page_bytes(const AttentionConfig& config, const EngineShape& shape,
                                       TensorParallel tensor_parallel) {
  return 2 * local_heads(tensor_parallel, config.num_kv_heads) * config.head_dim *
         shape.page_tokens * static_cast<std::int64_t>(dtype_bytes(shape.kv_dtype));
}

void FullAttention::forward(const LayerContext& context, const ops::BatchView& batch, const void* x,
                            int rows, float* out) const {
  const Scratch::Mark mark(context.scratch);
  const DType t = context.activations;
  const std::int64_t d = config_.head_dim;
  void* q_gate = context.scratch.take(t, rows * num_heads_ * 2 * d);
  void* k = context.scratch.take(t, rows * num_kv_heads_ * d);
  void* v = context.scratch.take(t, rows * num_kv_heads_ * d);
  void* q = context.scratch.take(t, rows * num_heads_ * d);
  void* attended = context.scratch.take(t, rows * num_heads_ * d);
  const std::size_t scratch_bytes = ops::paged_attention_scratch_bytes(
      context.backend, num_heads_, static_cast<int>(d), rows, max_context_);
  void* scratch = context.scratch.take_bytes(scratch_bytes);
  if (context.scratch.measuring()) return;

  forward_together(context, x, rows, {{q_, q_gate, t}, {k_, k, t}, {v_, v, t}});
  ops::attention_prep(context.backend, {.batch = batch,
                                        .q_gate = q_gate,
                                        .k = k,
                                        .v = v,
                                        .dtype = t,
                                        .q_norm = q_norm_,
                                        .k_norm = k_norm_,
                                        .eps = static_cast<float>(config_.eps),
                                        .inv_freq = inv_freq_,
                                        .rotary_dim = static_cast<int>(config_.rotary_dim),
                                        .rope_offset = config_.rope_offset,
                                        .num_heads = num_heads_,
                                        .q_out = q,
                                        .pages = pages_});
  const auto* gate =
      static_cast<const std::byte*>(q_gate) + d * static_cast<std::int64_t>(dtype_bytes(t));
  ops::paged_attention(context.backend, {.batch = batch,
                                         .q = q,
                                         .gate = gate,
                                         .gate_head_stride = 2 * d,
                                         .dtype = t,
                                         .num_heads = num_heads_,
                                         .scale = 1.0f / std::sqrt(static_cast<float>(d)),
                                         .first_index = config_.first_index,
                                         .pages = pages_,
                                         .out = attended,
                                         .scratch = scratch,
                                         .scratch_bytes = scratch_bytes});
  o_.forward(context, attended, rows, out);
}

}  // namespace tandem
