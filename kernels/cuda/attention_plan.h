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
// each bundle [kBundleParts][paired_columns() * part_floats()] fp32: its spans, then their join. A
// column's header is {largest score, sum}; its values are those of whole tiles of 16 dimensions.
// Columns lie there by pairs, as the matrix units leave them: an odd one takes the place of two.
constexpr int kBundleParts = kBundleSpans + 1;
constexpr int kPartHeader = 4;
constexpr int part_floats(int head_dim) { return kPartHeader + (head_dim + 15) / 16 * 16; }
constexpr int paired_columns(int columns) { return (columns + 1) / 2 * 2; }

// A block owns up to `columns` pairs of row and head of one KV head. Its strands deal the steps of
// a span among themselves, step by step; so many are part of a row's order of summation, however
// many warps there are. A step's keys fill a slot, and so do its values. Each strand has a ring of
// slots to itself: one is being used, the others are under way. That is 128 KB for each of an
// H200's processors, three times what its share of the bandwidth brings within a microsecond, and
// 32 KB for a GB10's, which needs 8.
constexpr int kStrands = 4;
constexpr int kSlotBytes = 8 * 1024;
constexpr int kMinSlots = 2, kMaxSlots = 6;
constexpr int kEnoughSlots = 3;  // for a processor to run another block rather than hold more
constexpr int step_keys(int padded_dim, int element_bytes) {
  return kSlotBytes / (padded_dim * element_bytes);
}
// A warp's registers hold the values of 16 columns.
constexpr int strand_warps(int columns) { return columns <= 16 ? 1 : 2; }
constexpr int generated_threads(int columns) { return kStrands * strand_warps(columns) * 32; }
// What registers are set aside for, on any processor.
constexpr int generated_blocks(int columns) { return columns <= 16 ? 2 : 1; }

// What a strand looks ahead to while slots are filled, and the step after: spans have at least one
// step, which is two slots. Of spans the units and the queries, of steps the scales (FP8).
constexpr int unit_places(int slots) { return slots / 2 + 2; }
constexpr int query_places(int slots) { return slots / 2 + 1; }
constexpr int scale_places(int slots) { return (slots + 1) / 2; }
constexpr int kUnitBytes = 48;

// Byte offsets in a block's shared memory; the ring is at 0, [kStrands][slots][kSlotBytes].
struct GeneratedLayout {
  int queries = 0;  // [query_places][used columns][padded dim] bf16
  int scales = 0;   // FP8: [kStrands][scale_places][2][step keys] fp32, of keys, of values
  int headers = 0;  // [kStrands][8] {largest score, sum}, of a tile of columns
  int units = 0;    // [warps][unit_places][kUnitBytes]
  int bytes = 0;    // of all
};

struct GeneratedPlan {
  int columns = 8;  // 8, 16 or 32: the kernel
  int rows_per_unit = 1;
  int heads_per_unit = 1;
  int head_units = 1;  // units that share a KV head's query heads
  int grid = 0;
  int bundles = 0;  // for how many there is scratch memory and counters; 0: nothing is shared
  int slots = kMinSlots;
  GeneratedLayout shared;

  constexpr int used_columns() const { return rows_per_unit * heads_per_unit; }
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
