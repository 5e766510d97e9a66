#include "layers/vocab.h"

#include "kernels/ops/embedding.h"

namespace tandem {
namespace {

std::vector<RowRange> ids_of(const VocabShard& shard) {
  return {{shard.begin, shard.begin + shard.rows}};
}

}  // namespace

VocabShard make_vocab_shard(std::int64_t vocab_size, TensorParallel tensor_parallel) {
  const auto [rank, size] = tensor_parallel;
  const auto range = split_padded(vocab_size, rank, size);
  return {.vocab_size = vocab_size,
          .begin = range.begin,
          .rows = range.count(),
          .padded_rows = padded_shard_rows(vocab_size, size)};
}

VocabEmbedding::VocabEmbedding(WeightBinder& binder, const std::string& name,
                               std::int64_t vocab_size, std::int64_t hidden)
    : shard_(make_vocab_shard(vocab_size, binder.tensor_parallel())),
      weight_(binder.table(name, vocab_size, hidden, ids_of(shard_), shard_.padded_rows)) {}

void VocabEmbedding::forward(const LayerContext& context, const std::int32_t* token_ids, int rows,
                             float* out) const {
  const int hidden = static_cast<int>(weight_.in_features);
  ops::embedding(
      context.backend,
      {.token_ids = token_ids,
       .num_rows = rows,
       .table = weight_.data,
       .table_dtype = weight_.format == ops::WeightFormat::kBf16 ? DType::kBF16 : DType::kF32,
       .shard_begin = shard_.begin,
       .shard_rows = shard_.rows,
       .hidden = hidden,
       .out = out});
  context.comm.all_reduce_tree_f32(out, static_cast<std::int64_t>(rows) * hidden);
}

LmHead::LmHead(WeightBinder& binder, const std::string& name, std::int64_t vocab_size,
               std::int64_t hidden)
    : shard_(make_vocab_shard(vocab_size, binder.tensor_parallel())),
      weight_(binder.matrix(name, vocab_size, hidden, ids_of(shard_), std::nullopt,
                            shard_.padded_rows)) {}

LmHead::LmHead(const VocabEmbedding& tied) : shard_(tied.shard()), weight_(tied.weight()) {}

void LmHead::forward(const LayerContext& context, const void* x, int rows, float* logits) const {
  if (shard_.rows == 0) return;
  ops::linear(context.backend, {.x = x,
                                .x_dtype = context.activations,
                                .x_stride = weight_.in_features,
                                .num_rows = rows,
                                .weight = weight_,
                                .num_leaves = 1,
                                .y = logits,
                                .y_dtype = DType::kF32,
                                .y_stride = shard_.padded_rows});
}

}  // namespace tandem
