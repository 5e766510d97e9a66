// How paged attention is spread over blocks, and the spans of the context that this may cut. Plain
// host code, and constants that the kernels share with it.
//
// Three kernels, each with an order of summation of its own; which one a row takes depends on types
// and on its class only:
//   kGenerated  generated rows of BF16 queries: bound by the traffic of keys and values
//   kPrompt     prompt rows of BF16 queries: bound by the matrix units
//   kPlain      F32 queries or pages: fp32 multiply-adds
// The first two read BF16 or FP8 pages, and are compiled for either.
// In all of them a row's order follows from cache indices counted from 0. Spans are what blocks can
// share; whether they do, and how many processors there are, shows in no bit.
//
// Capture: plans, and so grids, are made from the number of rows and segments and from what the
// page table spans, never from positions or lengths. What a block works on it finds out on the
// device, from segments, positions and page table, so a captured launch can be replayed over other
// contents of those arrays while num_rows and num_segments stay.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/batch_view.h"
#include "kernels/ops/paged_attention.h"

namespace tandem::cuda {

enum class AttentionPath { kGenerated, kPrompt, kPlain };

AttentionPath attention_path(DType dtype, ops::KvFormat pages, ops::RowClass row_class);

// What a plan is made from; row counts may change between calls, nothing else.
struct AttentionSize {
  AttentionPath path = AttentionPath::kPlain;
  int num_rows = 0;
  int num_segments = 0;
  int num_kv_heads = 0;
  int group = 0;  // query heads of a KV head
  int head_dim = 0;
  int element_bytes = 2;         // of pages
  std::int64_t max_context = 0;  // tokens that the page table spans
  std::size_t scratch_bytes = 0;
  int max_arrivals = 0;  // counters that the backend has
};

struct AttentionDevice {
  int num_processors = 0;
  std::size_t shared_bytes_per_block = 0;
};

// Cache indices, and what kernels add to them, stay well inside an int.
constexpr std::int64_t kMaxContext = std::int64_t{1} << 30;

// In place of a row of a plane of pages: an entry that nobody sees. Zeros stand for it, because
// memory that no one has written may hold NaN, and NaN times a probability of 0 is not 0.
constexpr std::uint32_t kNoRow = 0xffffffffu;

// Prompt rows and generated rows: width of the heads that kernels exist for, rounded up with zeros.
constexpr int padded_head_dim(int head_dim) { return head_dim <= 128 ? 128 : 256; }

// ---- Generated rows.
//
// Short spans first, so that a short context still occupies many processors; long ones later, so
// that the parts which are put together stay few.
constexpr int kShortSpan = 128, kMiddleSpan = 256, kLongSpan = 512;  // tokens
constexpr int kMiddleBegin = 4096, kLongBegin = 32768;               // cache indices
constexpr int kShortSpans = kMiddleBegin / kShortSpan;
constexpr int kMiddleSpans = (kLongBegin - kMiddleBegin) / kMiddleSpan;

constexpr int span_of(int index) {
  if (index < kMiddleBegin) return index / kShortSpan;
  if (index < kLongBegin) return kShortSpans + (index - kMiddleBegin) / kMiddleSpan;
  return kShortSpans + kMiddleSpans + (index - kLongBegin) / kLongSpan;
}

constexpr int span_begin(int span) {
  if (span <= kShortSpans) return span * kShortSpan;
  if (span <= kShortSpans + kMiddleSpans) {
    return kMiddleBegin + (span - kShortSpans) * kMiddleSpan;
  }
  return kLongBegin + (span - kShortSpans - kMiddleSpans) * kLongSpan;
}

// Spans are joined in ascending order within a bundle of so many, then the bundles. One block at
// the end joins either, so the two levels are to take about equally long at long contexts.
constexpr int kBundleSpans = 16;
constexpr int bundle_of(int index) { return span_of(index) / kBundleSpans; }
constexpr int num_bundles(std::int64_t context) {
  return context > 0 ? bundle_of(static_cast<int>(context - 1)) + 1 : 0;
}

// Spans of one unit - rows and heads that a block works on together - meet in scratch memory, for
// each bundle [kBundleParts][columns * part_floats()] fp32: its spans, then their join. A column's
// header is {largest score, sum}; its values are those of whole tiles of 16 dimensions.
constexpr int kBundleParts = kBundleSpans + 1;
constexpr int kPartHeader = 4;
constexpr int part_floats(int head_dim) { return kPartHeader + (head_dim + 15) / 16 * 16; }

// A block owns up to `columns` pairs of row and head of one KV head, and streams keys and values
// through a ring of stages, by turns the keys and the values of a step. What one stage less holds
// is under way at any time: with the blocks of an H200's processor 64 to 128 KB, two to four times
// what its share of the bandwidth takes at a latency of a microsecond. With few columns, which
// means few rows and often few blocks, a block hides that latency by itself. A step of FP8 has as
// many keys, so it is half as long and twice as many are under way.
constexpr int kGeneratedThreads = 128;
constexpr int kStageElements = 8 * 1024;
constexpr int stage_bytes(int element_bytes) { return kStageElements * element_bytes; }
constexpr int steps_ahead(int columns, int element_bytes) {
  return (columns <= 8 ? 2 : 1) * 2 / element_bytes;
}
constexpr int ring_stages(int columns, int element_bytes) {
  return 2 * steps_ahead(columns, element_bytes) + 1;
}
constexpr int step_keys(int padded_dim) { return kStageElements / padded_dim; }
// Of scores in shared memory, by keys: eight columns' pairs of keys lie in different banks.
constexpr int score_pitch(int padded_dim) { return step_keys(padded_dim) + 8; }
// Warps that share a tile of 16 keys, each with its part of the dimensions.
constexpr int score_parts(int padded_dim) {
  return kGeneratedThreads / 32 / (step_keys(padded_dim) / 16);
}
// On a processor with an H200's shared memory; what registers are set aside for.
constexpr int generated_blocks(int columns, int element_bytes) {
  return columns == 16 || (columns == 24 && element_bytes == 2) ? 3 : 2;
}

struct GeneratedPlan {
  int columns = 8;  // 8, 16, 24 or 32: the kernel
  int rows_per_unit = 1;
  int heads_per_unit = 1;
  int head_units = 1;  // units that share a KV head's query heads
  int grid = 0;
  int bundles = 0;  // for how many there is scratch memory and counters; 0: nothing is shared
  std::size_t shared_bytes = 0;
};

GeneratedPlan plan_generated(const AttentionSize& size, const AttentionDevice& device);

// ---- Prompt rows: a block owns 64 queries - pairs of row and head of one KV head - and goes
// through the context in tiles of 64 keys. A few rows on a long context occupy few processors.
constexpr int kTileQueries = 64;
constexpr int kTileKeys = 64;

struct PromptPlan {
  int tiles = 0;  // of queries, at most: each segment's last may be short
  int grid = 0;
  std::size_t shared_bytes = 0;
};

PromptPlan plan_prompt(const AttentionSize& size);

// ---- Plain: inside a partition of 256 cache indices by keys, partitions of a span in ascending
// order, spans in ascending order.
constexpr int kPlainSpanPartitions = 2;
constexpr int kPlainSpan = kPlainSpanPartitions * ops::kAttentionPartition;
constexpr std::int64_t num_plain_spans(std::int64_t context) {
  return (context + kPlainSpan - 1) / kPlainSpan;
}

struct PlainPlan {
  int head_blocks = 1;  // of a KV head
  int splits = 1;       // blocks that share a row's spans; above 1: spans meet in scratch memory
  std::size_t shared_bytes = 0;
};

PlainPlan plan_plain(const AttentionSize& size, const AttentionDevice& device);

// Enough for contexts as long as the table for few rows, and up to a limit that keeps the memory in
// proportion for many: their contexts fill the processors without being shared to the last.
std::size_t attention_scratch_bytes(int num_heads, int head_dim, int max_rows,
                                    std::int64_t max_context);

}  // namespace tandem::cuda
