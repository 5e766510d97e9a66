#include "sampling/sampler.h"

#include <algorithm>

#include "base/hash.h"

namespace tandem {
namespace {

// Rows gathered at once; bounds the buffers (a row of the 27B's vocabulary is 1 MB).
constexpr int kRowsAtATime = 8;

bool needs_whole_row(const ops::SampleParams& p, const SampleOptions& options) {
  return p.temperature > 0 || options.logprobs || options.logit_hashes;
}

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
      best_(allocator.take_array<ops::ArgmaxResult>(parts::kHostTables,
                                                    std::int64_t{max_rows} * tensor_ranks)),
      gathered_(allocator.take_array<float>(parts::kCommunication,
                                            tensor_ranks * kRowsAtATime * shard.padded_rows)),
      whole_rows_(allocator.take_array<float>(parts::kActivations,
                                              tensor_ranks * kRowsAtATime * shard.padded_rows)),
      params_(allocator.take_array<ops::SampleParams>(parts::kHostTables, kRowsAtATime)),
      results_(allocator.take_array<ops::SampleResult>(parts::kHostTables, kRowsAtATime)),
      scratch_(
          allocator.take(parts::kActivations,
                         ops::sample_scratch_bytes(backend, tensor_ranks * shard.padded_rows))) {}

void Sampler::sample(const LayerContext& context, const float* logits,
                     std::span<const ops::SampleParams> params, const SampleOptions& options,
                     std::span<SampledToken> out) {
  const auto whole = [&](const ops::SampleParams& p) { return needs_whole_row(p, options); };
  if (std::any_of(params.begin(), params.end(), whole)) {
    sample_gathered(context, logits, params, options, out);
    return;
  }
  std::int32_t ids[kRowsAtATime];
  for (std::size_t row = 0; row < params.size(); row += kRowsAtATime) {
    const int n = static_cast<int>(std::min<std::size_t>(kRowsAtATime, params.size() - row));
    argmax(context, logits + static_cast<std::int64_t>(row) * shard_.padded_rows, n, ids);
    for (int i = 0; i < n; ++i) out[row + static_cast<std::size_t>(i)] = {.id = ids[i]};
  }
}

void Sampler::argmax(const LayerContext& context, const float* logits, int num_rows,
                     std::span<std::int32_t> out) {
  TANDEM_CHECK(num_rows <= max_rows_);
  ops::argmax_rows(context.backend, {.logits = logits,
                                     .stride = shard_.padded_rows,
                                     .num_rows = num_rows,
                                     .shard_begin = shard_.begin,
                                     .shard_rows = shard_.rows,
                                     .valid_vocab = valid_vocab_,
                                     .out = local_best_});
  const auto bytes = static_cast<std::int64_t>(sizeof(ops::ArgmaxResult)) * num_rows;
  context.comm.all_gather(local_best_, all_best_, bytes);
  context.backend.copy(best_, all_best_, static_cast<std::size_t>(bytes * ranks_));
  context.backend.synchronize();
  for (int row = 0; row < num_rows; ++row) {
    // Shards are in the order of their ids, so a strict comparison leaves ties to the lower id.
    ops::ArgmaxResult best = best_[row];
    for (int r = 1; r < ranks_; ++r) {
      const auto& other = best_[r * num_rows + row];
      if (other.value > best.value) best = other;
    }
    out[static_cast<std::size_t>(row)] = best.id;
  }
}

std::uint64_t Sampler::hash_row(const LayerContext& context, const float* row) {
  const auto bytes = static_cast<std::size_t>(valid_vocab_) * sizeof(float);
  host_row_.resize(static_cast<std::size_t>(valid_vocab_));
  context.backend.copy(host_row_.data(), row, bytes);
  context.backend.synchronize();
  return xxh3_64(host_row_.data(), bytes);
}

void Sampler::sample_gathered(const LayerContext& context, const float* logits,
                              std::span<const ops::SampleParams> params,
                              const SampleOptions& options, std::span<SampledToken> out) {
  const std::int64_t padded = shard_.padded_rows;
  const std::int64_t stride = ranks_ * padded;
  for (std::size_t first = 0; first < params.size(); first += kRowsAtATime) {
    const int n = static_cast<int>(std::min<std::size_t>(kRowsAtATime, params.size() - first));
    const float* part = logits + static_cast<std::int64_t>(first) * padded;
    context.comm.all_gather(part, gathered_, n * padded * static_cast<std::int64_t>(sizeof(float)));
    for (int r = 0; r < ranks_; ++r) {
      for (int row = 0; row < n; ++row) {
        context.backend.copy(whole_rows_ + row * stride + r * padded,
                             gathered_ + (std::int64_t{r} * n + row) * padded,
                             static_cast<std::size_t>(padded) * sizeof(float));
      }
    }
    std::copy_n(params.begin() + static_cast<std::ptrdiff_t>(first), n, params_);
    ops::sample_rows(context.backend, {.logits = whole_rows_,
                                       .stride = stride,
                                       .num_rows = n,
                                       .valid_vocab = valid_vocab_,
                                       .params = params_,
                                       .want_logprob = options.logprobs,
                                       .out = results_,
                                       .scratch = scratch_});
    context.backend.synchronize();
    for (int row = 0; row < n; ++row) {
      auto& token = out[first + static_cast<std::size_t>(row)];
      token = {.id = results_[row].id, .logprob = results_[row].logprob};
      if (options.logit_hashes) {
        token.logit_hash = hash_row(context, whole_rows_ + row * stride);
      }
    }
  }
}

}  // namespace tandem
