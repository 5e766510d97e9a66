// From each rank's part of the logits to tokens that all ranks agree on, without gathering logits
// where it can be avoided: greedy rows exchange one (value, id) pair a rank; rows that filter,
// draw, or want a log-probability or a hash are gathered whole, a few rows at a time, and every
// rank then computes the same result from the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/sample.h"
#include "layers/layer_context.h"
#include "layers/vocab.h"
#include "memory/part_allocator.h"

namespace tandem {

struct SampledToken {
  std::int32_t id = 0;
  float logprob = 0;             // valid when asked for
  std::uint64_t logit_hash = 0;  // XXH3 of the row's fp32 logits, all ranks' parts; when asked for
};

struct SampleOptions {
  bool logprobs = false;
  bool logit_hashes = false;
};

class Sampler {
 public:
  // valid_vocab: ids from here on belong to no token and are never chosen. max_rows: rows of one
  // call.
  Sampler(PartAllocator& allocator, const Backend& backend, const VocabShard& shard,
          int tensor_ranks, std::int64_t valid_vocab, int max_rows);

  // logits [params.size(), padded_rows] of this rank; out has one entry a row.
  void sample(const LayerContext& context, const float* logits,
              std::span<const ops::SampleParams> params, const SampleOptions& options,
              std::span<SampledToken> out);
  // The largest logit of each row, ties to the lower id.
  void argmax(const LayerContext& context, const float* logits, int num_rows,
              std::span<std::int32_t> out);

  std::int64_t valid_vocab() const { return valid_vocab_; }

 private:
  void sample_gathered(const LayerContext& context, const float* logits,
                       std::span<const ops::SampleParams> params, const SampleOptions& options,
                       std::span<SampledToken> out);
  // A test mode: the row makes a detour over the host.
  std::uint64_t hash_row(const LayerContext& context, const float* row);

  VocabShard shard_;
  int ranks_;
  std::int64_t valid_vocab_;
  int max_rows_;
  ops::ArgmaxResult* local_best_;  // [max_rows]
  ops::ArgmaxResult* all_best_;    // [ranks, rows of the call]
  ops::ArgmaxResult* best_;        // the same, where the host can read it
  float* gathered_;                // [ranks, rows at a time, padded_rows]
  float* whole_rows_;              // [rows at a time, ranks * padded_rows]
  ops::SampleParams* params_;      // [rows at a time]
  ops::SampleResult* results_;     // [rows at a time]
  void* scratch_;
  std::vector<float> host_row_;  // [valid_vocab], only with hashes
};

}  // namespace tandem
