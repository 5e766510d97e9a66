#include "layers/full_attention.h"

#include <cmath>
#include <iterator>
#include <vector>

#include "base/error.h"
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
      inv_freq_(allocator.take_array<float>(parts::kWeights, config.rotary_dim / 2)),
      pages_(take_pages(allocator, backend, shape, binder.tensor_parallel())) {
  if (inv_freq_ != nullptr) {
    const auto table = inverse_frequencies(config);
    backend->copy(inv_freq_, table.data(), table.size() * sizeof(float));
  }
}

std::int64_t FullAttention::page_bytes(const AttentionConfig& config, const EngineShape& shape,
                                       TensorParallel tensor_parallel) {
  const auto element = static_cast<std::int64_t>(dtype_bytes(kv_dtype(config.kv_format)));
  return 2 * local_heads(tensor_parallel, config.num_kv_heads) * shape.page_tokens *
         (config.head_dim * element + kv_scale_bytes(config.kv_format));
}

ops::KvPages FullAttention::take_pages(PartAllocator& allocator, Backend* backend,
                                       const EngineShape& shape,
                                       TensorParallel tensor_parallel) const {
  ops::KvPages pages{.format = config_.kv_format,
                     .num_pages = shape.num_pages,
                     .num_kv_heads = num_kv_heads_,
                     .page_tokens = shape.page_tokens,
                     .head_dim = static_cast<int>(config_.head_dim)};
  const std::int64_t entries = std::int64_t{shape.num_pages} * num_kv_heads_ * shape.page_tokens;
  const std::int64_t value_bytes =
      entries * config_.head_dim * static_cast<std::int64_t>(dtype_bytes(kv_dtype(pages.format)));
  const std::int64_t scale_bytes = entries * kv_scale_bytes(pages.format);
  // A plane's values, then its scales.
  const auto take_plane = [&](void*& values, float*& scales) {
    auto* plane = static_cast<std::byte*>(
        allocator.take(parts::kKvPages, static_cast<std::size_t>(value_bytes + scale_bytes)));
    values = plane;
    if (plane != nullptr && scale_bytes > 0) {
      scales = reinterpret_cast<float*>(plane + value_bytes);
    }
  };
  take_plane(pages.k_pages, pages.k_scales);
  take_plane(pages.v_pages, pages.v_scales);
  if (pages.format != ops::KvFormat::kFp8Static) return pages;

  const RowRange heads =
      split_heads(config_.num_kv_heads, 1, tensor_parallel.rank, tensor_parallel.size);
  const auto take_scales = [&](const std::vector<float>& of_model) {
    auto* scales = allocator.take_array<float>(parts::kWeights, heads.count());
    if (scales != nullptr) {
      TANDEM_CHECK(std::ssize(of_model) == config_.num_kv_heads, "{} scales", of_model.size());
      backend->copy(scales, of_model.data() + heads.begin,
                    static_cast<std::size_t>(heads.count()) * sizeof(float));
    }
    return scales;
  };
  pages.k_scales = take_scales(config_.kv_scales.k);
  pages.v_scales = take_scales(config_.kv_scales.v);
  return pages;
}

void FullAttention::prepack_weights(Backend& backend) {
  for (ColumnLinear* layer : {&q_, &k_, &v_}) layer->prepack_weights(backend);
  o_.prepack_weights(backend);
}

void FullAttention::forward(const LayerContext& context, const ops::BatchView& batch,
                            const LayerInput& in, float* out) const {
  const int rows = in.rows;
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

  forward_together(context, in, {{q_, q_gate, t}, {k_, k, t}, {v_, v, t}});
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
