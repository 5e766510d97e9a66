// Vocabulary-parallel embedding and head: each rank keeps a contiguous range of vocabulary rows.
// The ranges are of equal length but for the last ranks', which may be shorter or empty.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/ops/linear.h"
#include "layers/layer_context.h"
#include "layers/weight_binder.h"

namespace tandem {

struct VocabShard {
  std::int64_t vocab_size = 0;
  std::int64_t begin = 0;        // first id of this rank
  std::int64_t rows = 0;         // ids of this rank, maybe 0
  std::int64_t padded_rows = 0;  // ids of a full shard, the same on all ranks
};

VocabShard make_vocab_shard(std::int64_t vocab_size, TensorParallel tensor_parallel);

class VocabEmbedding {
 public:
  VocabEmbedding(WeightBinder& binder, const std::string& name, std::int64_t vocab_size,
                 std::int64_t hidden);

  const ops::LinearWeight& weight() const { return weight_; }  // for a tied head
  const VocabShard& shard() const { return shard_; }
  // out [rows, hidden] fp32: exact, as all ranks but the owner add zero.
  void forward(const LayerContext& context, const std::int32_t* token_ids, int rows,
               float* out) const;

 private:
  VocabShard shard_;
  ops::LinearWeight weight_;
};

class LmHead {
 public:
  LmHead(WeightBinder& binder, const std::string& name, std::int64_t vocab_size,
         std::int64_t hidden);
  explicit LmHead(const VocabEmbedding& tied);

  void prepack_weights(Backend& backend) { ops::prepack_weight(backend, weight_); }
  const VocabShard& shard() const { return shard_; }
  // x [rows, hidden] -> logits [rows, padded_rows] fp32 of this rank's ids; the columns beyond
  // shard().rows are not written.
  void forward(const LayerContext& context, const void* x, int rows, float* logits) const;

 private:
  VocabShard shard_;
  ops::LinearWeight weight_;
};

}  // namespace tandem
