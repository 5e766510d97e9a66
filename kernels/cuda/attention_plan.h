// How paged attention is spread over blocks. Plain host code.
//
// The order of a row's reduction: inside a partition of 256 cache indices as the kernel's path says
// (which depends on the types alone), partitions of a span in ascending order, spans in ascending
// order. Spans are what blocks can share; whether they do shows in no bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/paged_attention.h"

namespace tandem::cuda {

inline constexpr int kSpanPartitions = 2;
inline constexpr int kSpanTokens = kSpanPartitions * ops::kAttentionPartition;

enum class AttentionPath {
  kTensor,  // BF16 queries and pages
  kPlain,   // fp32 multiply-adds
};

// What a plan is made from; row counts may change between calls, nothing else.
struct AttentionSize {
  AttentionPath path = AttentionPath::kPlain;
  int num_rows = 0;
  int num_segments = 0;
  int num_kv_heads = 0;
  int group = 0;  // query heads of a KV head
  int head_dim = 0;
  std::int64_t max_context = 0;  // tokens that the page table spans
  std::size_t scratch_bytes = 0;
};

// A block works on rows_per_block rows x heads_per_block heads of one KV head, its columns; with
// kTensor there are 8 * tiles of them at most.
struct AttentionPlan {
  int tiles = 1;
  int rows_per_block = 1;
  int heads_per_block = 1;
  int row_blocks = 1;
  int head_blocks = 1;  // of a KV head
  int splits = 1;       // blocks that share a row's spans; above 1: spans meet in scratch memory
  std::size_t shared_bytes = 0;
};

AttentionPath attention_path(DType dtype, DType page_dtype);

AttentionPlan plan_attention(const AttentionSize& size, int num_processors);

// Partial results of one row and head: {max, sum, values [head_dim]} for each span.
constexpr std::int64_t span_floats(int head_dim) { return head_dim + 2; }
constexpr std::int64_t num_spans(std::int64_t context) {
  return (context + kSpanTokens - 1) / kSpanTokens;
}

}  // namespace tandem::cuda
