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

  // Lets the backend choose: results() has one entry a row, the same on every rank. Can be
  // recorded. logits [num_rows, padded_rows] of this rank; params [num_rows], not read by kArgmax.
  void enqueue(const LayerContext& context, const float* logits, int num_rows, SampleMethod method,
               const ops::SampleParams* params);
  const ops::SampleResult* results() const { return results_; }  // [max_rows], on the device
  // The largest logit of each row of every rank's part, [ranks, num_rows] on the device, until the
  // next call of either.
  const ops::ArgmaxResult* enqueue_argmax(const LayerContext& context, const float* logits,
                                          int num_rows);

  // For rows whose parameters the host has: all at once, in two halves between which the device may
  // be given more to do. finish() reads the choice after synchronize(); out has one entry a row.
  void begin(const LayerContext& context, const float* logits,
             std::span<const ops::SampleParams> params, const SampleOptions& options);
  void finish(const LayerContext& context, const float* logits, const SampleOptions& options,
              std::span<SampledToken> out);
  void sample(const LayerContext& context, const float* logits,
              std::span<const ops::SampleParams> params, const SampleOptions& options,
              std::span<SampledToken> out);

  // XXH3 of a whole row. A test mode: the row makes a detour over the host.
  std::uint64_t hash_row(const LayerContext& context, const float* logits, int row);

  static SampleMethod method_of(bool any_draws, const SampleOptions& options);
  std::int64_t valid_vocab() const { return valid_vocab_; }

 private:
  void enqueue_gathered(const LayerContext& context, const float* logits, int num_rows,
                        bool want_logprob, const ops::SampleParams* params);
  void gather(const LayerContext& context, const float* logits, int num_rows);

  VocabShard shard_;
  int ranks_;
  std::int64_t valid_vocab_;
  int max_rows_;
  ops::ArgmaxResult* local_best_;  // [max_rows]
  ops::ArgmaxResult* all_best_;    // [ranks, rows of the call]
  float* gathered_;                // [ranks, rows at a time, padded_rows]
  float* whole_rows_;              // [rows at a time, ranks * padded_rows]
  ops::SampleResult* results_;     // [max_rows]
  ops::SampleParams* params_;      // [max_rows] of begin()
  ops::SampleResult* chosen_;      // [max_rows] for finish()
  void* scratch_;
  std::vector<float> host_row_;  // [valid_vocab], only with hashes
};

}  // namespace tandem
