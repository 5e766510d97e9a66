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

// How the rows of a call are chosen.
enum class SampleMethod {
  kArgmax,            // greedy: one (value, id) pair a rank is exchanged
  kGathered,          // whole rows are gathered
  kGatheredLogprobs,  // with log-probabilities
};

class Sampler {
 public:
  // valid_vocab: ids from here on belong to no token and are never chosen. max_rows: rows of one
  // call.
  Sampler(PartAllocator& allocator, const Backend& backend, const VocabShard& shard,
          int tensor_ranks, std::int64_t valid_vocab, int max_rows);

  // In two halves, between which the device may be given more to do: enqueue() lets the backend
  // choose (it can be recorded), collect() reads the choice after synchronize().
  // logits [params.size(), padded_rows] of this rank. The parameters are copied by set_params()
  // beforehand, outside of what is recorded.
  void set_params(std::span<const ops::SampleParams> params);
  void enqueue(const LayerContext& context, const float* logits, int num_rows, SampleMethod method);
  // out has one entry a row.
  void collect(const LayerContext& context, const float* logits, int num_rows, SampleMethod method,
               const SampleOptions& options, std::span<SampledToken> out);
  static SampleMethod method_of(std::span<const ops::SampleParams> params,
                                const SampleOptions& options);

  // All at once; out has one entry a row.
  void sample(const LayerContext& context, const float* logits,
              std::span<const ops::SampleParams> params, const SampleOptions& options,
              std::span<SampledToken> out);
  // The largest logit of each row, ties to the lower id.
  void argmax(const LayerContext& context, const float* logits, int num_rows,
              std::span<std::int32_t> out);

  std::int64_t valid_vocab() const { return valid_vocab_; }

 private:
  void enqueue_argmax(const LayerContext& context, const float* logits, int num_rows);
  void enqueue_gathered(const LayerContext& context, const float* logits, int num_rows,
                        bool want_logprob);
  // The chosen id of a row, by whichever rank has the largest logit.
  std::int32_t best_of_ranks(int row, int num_rows) const;
  void gather(const LayerContext& context, const float* logits, int num_rows);
  // A test mode: the rows make a detour over the host.
  void hash_rows(const LayerContext& context, const float* logits, int num_rows,
                 std::span<SampledToken> out);

  VocabShard shard_;
  int ranks_;
  std::int64_t valid_vocab_;
  int max_rows_;
  ops::ArgmaxResult* local_best_;  // [max_rows]
  ops::ArgmaxResult* all_best_;    // [ranks, rows of the call]
  ops::ArgmaxResult* best_;        // the same, where the host can read it
  float* gathered_;                // [ranks, rows at a time, padded_rows]
  float* whole_rows_;              // [rows at a time, ranks * padded_rows]
  ops::SampleParams* params_;      // [max_rows]
  ops::SampleResult* results_;     // [max_rows]
  void* scratch_;
  std::vector<float> host_row_;  // [valid_vocab], only with hashes
};

}  // namespace tandem
