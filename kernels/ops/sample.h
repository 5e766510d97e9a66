// Choosing tokens from logits.
#pragma once

#include <cstdint>

#include "base/counter_rng.h"
#include "kernels/backend.h"

namespace tandem::ops {

struct ArgmaxResult {
  float value = 0;
  std::int32_t id = 0;
};

// Per row the largest logit among the shard's ids below valid_vocab; ties go to the lower id. A row
// of a shard without valid ids gives {-inf, shard_begin}. NaN logits lose against everything; a row
// of NaNs gives {-inf, shard_begin}.
struct ArgmaxRowsArgs {
  const float* logits = nullptr;  // [num_rows, shard_rows], row stride stride
  std::int64_t stride = 0;
  int num_rows = 0;
  std::int64_t shard_begin = 0;
  std::int64_t shard_rows = 0;
  std::int64_t valid_vocab = 0;
  ArgmaxResult* out = nullptr;  // [num_rows]
};
void argmax_rows(Backend& backend, const ArgmaxRowsArgs& args);

struct SampleResult {
  std::int32_t id = 0;
  float logprob = 0;  // natural log of the *unfiltered* softmax(logits) at id, temperature 1
};

// The best of the shards' bests; ties to the lower id.
struct MergeArgmaxArgs {
  const ArgmaxResult* parts = nullptr;  // [num_ranks, num_rows], ranks in the order of their ids
  int num_ranks = 1;
  int num_rows = 0;
  SampleResult* out = nullptr;  // [num_rows], without log-probabilities
};
void merge_argmax(Backend& backend, const MergeArgmaxArgs& args);

// What one row's draw depends on; nothing else does (rule 7 of determinism.md).
struct SampleParams {
  float temperature = 0;  // 0: argmax, ties to the lower id
  float top_p = 1;
  float min_p = 0;
  std::int32_t top_k = 0;  // 0: off
  RngKey key{};
  std::uint32_t position = 0;  // of the token being chosen
};

// Shards are in the order of their ids, so a strict comparison leaves ties to the lower id.
constexpr ArgmaxResult best_of_ranks(const ArgmaxResult* parts, int num_ranks, int num_rows,
                                     int row) {
  ArgmaxResult best = parts[row];
  for (int rank = 1; rank < num_ranks; ++rank) {
    const ArgmaxResult& other = parts[rank * num_rows + row];
    if (other.value > best.value) best = other;
  }
  return best;
}

// The final distribution: softmax(logits / T) -> top-k -> top-p -> min-p, all in fp32; the sample
// is argmax over the kept ids of logit / T + Gumbel noise keyed by (key, position, id).
//   top-k keeps the k largest (ties at the border: lower ids first);
//   top-p keeps the smallest set of the most probable (same tie order) whose mass, over what top-k
//         left, reaches top_p; at least one;
//   min-p keeps ids with probability >= min_p * the largest.
struct SampleRowsArgs {
  const float* logits =
      nullptr;  // [num_rows, vocab], row stride stride: whole rows, all ranks' parts
  std::int64_t stride = 0;
  int num_rows = 0;
  std::int64_t valid_vocab = 0;
  const SampleParams* params = nullptr;  // [num_rows]
  bool want_logprob = false;
  SampleResult* out = nullptr;  // [num_rows]
  void* scratch = nullptr;      // sample_scratch_bytes()
};
std::size_t sample_scratch_bytes(const Backend& backend, std::int64_t vocab);
void sample_rows(Backend& backend, const SampleRowsArgs& args);

}  // namespace tandem::ops
