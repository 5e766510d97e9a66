#include "sampling/sampler.h"

#include <algorithm>

#include "base/hash.h"

namespace tandem {
namespace {

// Rows gathered at once; bounds the buffers (a row of the 27B's vocabulary is 1 MB).
constexpr int kRowsAtATime = 8;

}  // namespace

Sampler::Sampler(PartAllocator& allocator, const Backend& backend, const VocabShard& shard,
                 int tensor_ranks, std::int64_t valid_vocab, int max_rows)
    : shard_(shard),
      ranks_(tensor_ranks),
      valid_vocab_(std::min(valid_vocab, shard.vocab_size)),
      max_rows_(max_rows),
      local_best_(allocator.take_array<ops::ArgmaxResult>(parts::kActivations, max_rows)),
      all_best_(allocator.take_array<ops::ArgmaxResult>(parts::kCommunication,
                                                        std::int64_t{max_rows} * tensor_ranks)),
      gathered_(allocator.take_array<float>(parts::kCommunication,
                                            tensor_ranks * kRowsAtATime * shard.padded_rows)),
      whole_rows_(allocator.take_array<float>(parts::kActivations,
                                              tensor_ranks * kRowsAtATime * shard.padded_rows)),
      results_(allocator.take_array<ops::SampleResult>(parts::kActivations, max_rows)),
      params_(allocator.take_array<ops::SampleParams>(parts::kHostTables, max_rows)),
      chosen_(allocator.take_array<ops::SampleResult>(parts::kHostTables, max_rows)),
      scratch_(
          allocator.take(parts::kActivations,
                         ops::sample_scratch_bytes(backend, tensor_ranks * shard.padded_rows))) {}

SampleMethod Sampler::method_of(bool any_draws, const SampleOptions& options) {
  if (options.logprobs) return SampleMethod::kGatheredLogprobs;
  return any_draws ? SampleMethod::kGathered : SampleMethod::kArgmax;
}

void Sampler::enqueue(const LayerContext& context, const float* logits, int num_rows,
                      SampleMethod method, const ops::SampleParams* params) {
  TANDEM_CHECK(num_rows <= max_rows_);
  if (method == SampleMethod::kArgmax) {
    ops::merge_argmax(context.backend, {.parts = enqueue_argmax(context, logits, num_rows),
                                        .num_ranks = ranks_,
                                        .num_rows = num_rows,
                                        .out = results_});
  } else {
    enqueue_gathered(context, logits, num_rows, method == SampleMethod::kGatheredLogprobs, params);
  }
}

const ops::ArgmaxResult* Sampler::enqueue_argmax(const LayerContext& context, const float* logits,
                                                 int num_rows) {
  TANDEM_CHECK(num_rows <= max_rows_);
  ops::argmax_rows(context.backend, {.logits = logits,
                                     .stride = shard_.padded_rows,
                                     .num_rows = num_rows,
                                     .shard_begin = shard_.begin,
                                     .shard_rows = shard_.rows,
                                     .valid_vocab = valid_vocab_,
                                     .out = local_best_});
  if (ranks_ == 1) return local_best_;
  context.comm.all_gather(local_best_, all_best_,
                          static_cast<std::int64_t>(sizeof(ops::ArgmaxResult)) * num_rows);
  return all_best_;
}

void Sampler::begin(const LayerContext& context, const float* logits,
                    std::span<const ops::SampleParams> params, const SampleOptions& options) {
  const int rows = static_cast<int>(params.size());
  TANDEM_CHECK(rows <= max_rows_);
  const auto draws = [](const ops::SampleParams& p) { return p.temperature > 0; };
  std::copy(params.begin(), params.end(), params_);
  enqueue(context, logits, rows,
          method_of(std::any_of(params.begin(), params.end(), draws), options), params_);
  context.backend.copy(chosen_, results_, params.size() * sizeof(ops::SampleResult));
}

void Sampler::finish(const LayerContext& context, const float* logits, const SampleOptions& options,
                     std::span<SampledToken> out) {
  for (std::size_t row = 0; row < out.size(); ++row) {
    out[row] = {.id = chosen_[row].id, .logprob = chosen_[row].logprob};
    if (!options.logit_hashes) continue;
    out[row].logit_hash = hash_row(context, logits, static_cast<int>(row));
  }
}

void Sampler::sample(const LayerContext& context, const float* logits,
                     std::span<const ops::SampleParams> params, const SampleOptions& options,
                     std::span<SampledToken> out) {
  begin(context, logits, params, options);
  context.backend.synchronize();
  finish(context, logits, options, out);
}

// At most kRowsAtATime whole rows, into whole_rows_.
void Sampler::gather(const LayerContext& context, const float* logits, int num_rows) {
  const std::int64_t padded = shard_.padded_rows;
  context.comm.all_gather(logits, gathered_,
                          num_rows * padded * static_cast<std::int64_t>(sizeof(float)));
  for (int r = 0; r < ranks_; ++r) {
    for (int row = 0; row < num_rows; ++row) {
      context.backend.copy(whole_rows_ + row * ranks_ * padded + r * padded,
                           gathered_ + (std::int64_t{r} * num_rows + row) * padded,
                           static_cast<std::size_t>(padded) * sizeof(float));
    }
  }
}

void Sampler::enqueue_gathered(const LayerContext& context, const float* logits, int num_rows,
                               bool want_logprob, const ops::SampleParams* params) {
  for (int first = 0; first < num_rows; first += kRowsAtATime) {
    const int n = std::min(kRowsAtATime, num_rows - first);
    gather(context, logits + first * shard_.padded_rows, n);
    ops::sample_rows(context.backend, {.logits = whole_rows_,
                                       .stride = ranks_ * shard_.padded_rows,
                                       .num_rows = n,
                                       .valid_vocab = valid_vocab_,
                                       .params = params + first,
                                       .want_logprob = want_logprob,
                                       .out = results_ + first,
                                       .scratch = scratch_});
  }
}

std::uint64_t Sampler::hash_row(const LayerContext& context, const float* logits, int row) {
  const auto bytes = static_cast<std::size_t>(valid_vocab_) * sizeof(float);
  host_row_.resize(static_cast<std::size_t>(valid_vocab_));
  gather(context, logits + row * shard_.padded_rows, 1);
  context.backend.copy(host_row_.data(), whole_rows_, bytes);
  context.backend.synchronize();
  return xxh3_64(host_row_.data(), bytes);
}

}  // namespace tandem
