#include "kernels/cuda/attention_plan.h"

#include <algorithm>

namespace tandem::cuda {
namespace {

constexpr int kMaxColumns = 32;
constexpr int kPlainHeads = 8;
// Blocks for each processor before splitting stops paying.
constexpr int kPlainBlocks = 3;
constexpr std::size_t kMaxScratchBytes = std::size_t{256} << 20;
// What a processor sets aside for each block that it runs.
constexpr std::size_t kReservedSharedBytes = 1024;
// At most, of a block's fixed shared memory: units, headers and factors of columns.
constexpr std::size_t kGeneratedStaticBytes = 1024;

int divide_up(int n, int unit) { return (n + unit - 1) / unit; }

}  // namespace

AttentionPath attention_path(DType dtype, ops::KvFormat pages, ops::RowClass row_class) {
  if (dtype != DType::kBF16 || pages == ops::KvFormat::kF32) return AttentionPath::kPlain;
  return row_class == ops::RowClass::kPrompt ? AttentionPath::kPrompt : AttentionPath::kGenerated;
}

GeneratedPlan plan_generated(const AttentionSize& size, const AttentionDevice& device) {
  GeneratedPlan plan;
  plan.heads_per_unit = std::min(size.group, kMaxColumns);
  plan.head_units = divide_up(size.group, plan.heads_per_unit);
  // Rows of one segment share its keys and values.
  const int segment_rows = divide_up(size.num_rows, std::max(1, size.num_segments));
  plan.rows_per_unit = std::clamp(segment_rows, 1, kMaxColumns / plan.heads_per_unit);
  const int used = plan.rows_per_unit * plan.heads_per_unit;
  plan.columns = divide_up(used, 8) * 8;

  const int dim = padded_head_dim(size.head_dim);
  const int scores = score_parts(dim) * score_pitch(dim) * static_cast<int>(sizeof(float));
  // Probabilities, as two bf16 numbers each, change hands where warps share the columns.
  const int weights = plan.columns > 8 ? step_keys(dim) * 4 : 0;
  const int queries = steps_ahead(plan.columns, size.element_bytes) * dim * 2;
  // A stage of FP8 comes with its keys' or values' scales.
  const int scales = size.element_bytes == 1 ? step_keys(dim) * static_cast<int>(sizeof(float)) : 0;
  plan.shared_bytes = static_cast<std::size_t>(ring_stages(plan.columns, size.element_bytes) *
                                                   (stage_bytes(size.element_bytes) + scales) +
                                               plan.columns * (queries + scores + weights));

  // Blocks stay and walk over units and spans: as many as the processors run at a time.
  const std::size_t resident = (device.shared_bytes_per_block + kReservedSharedBytes) /
                               (plan.shared_bytes + kGeneratedStaticBytes + kReservedSharedBytes);
  const int per_processor = static_cast<int>(std::clamp<std::size_t>(
      resident, 1, static_cast<std::size_t>(generated_blocks(plan.columns, size.element_bytes))));
  const std::int64_t units = std::int64_t{size.num_rows} * size.num_kv_heads * plan.head_units;
  const std::int64_t spans =
      size.max_context > 0 ? span_of(static_cast<int>(size.max_context - 1)) + 1 : 1;
  plan.grid = static_cast<int>(
      std::min<std::int64_t>(units * spans, std::int64_t{device.num_processors} * per_processor));

  const std::size_t bundle_bytes =
      sizeof(float) * kBundleParts * static_cast<std::size_t>(used * part_floats(size.head_dim));
  plan.bundles = static_cast<int>(std::min<std::size_t>(
      size.scratch_bytes / bundle_bytes, static_cast<std::size_t>(size.max_arrivals) / 2));
  return plan;
}

PromptPlan plan_prompt(const AttentionSize& size) {
  PromptPlan plan;
  // The sum over segments of their tiles, ceil(queries / 64), is at most this.
  plan.tiles = (size.num_rows * size.group + size.num_segments * (kTileQueries - 1)) / kTileQueries;
  plan.grid = plan.tiles * size.num_kv_heads;
  const auto row = static_cast<std::size_t>(padded_head_dim(size.head_dim)) * 2;
  const std::size_t key_rows = 2 * kTileKeys * sizeof(std::uint32_t);
  // Queries, and a tile of keys and one of values; with FP8 one for both, and the codes of both.
  plan.shared_bytes = (kTileQueries + 2 * kTileKeys) * row + key_rows;
  if (size.element_bytes == 1) plan.shared_bytes += 4 * kTileKeys * sizeof(float);  // scales
  return plan;
}

PlainPlan plan_plain(const AttentionSize& size, const AttentionDevice& device) {
  PlainPlan plan;
  plan.head_blocks = divide_up(size.group, kPlainHeads);
  plan.shared_bytes = sizeof(float) * kPlainHeads *  // queries, scores
                      (static_cast<std::size_t>(size.head_dim) + ops::kAttentionPartition);
  const std::int64_t spans = num_plain_spans(size.max_context);
  const auto needed = static_cast<std::size_t>(size.num_rows) *
                      static_cast<std::size_t>(size.group * size.num_kv_heads) *
                      static_cast<std::size_t>(spans * part_floats(size.head_dim)) * sizeof(float);
  const std::int64_t blocks = std::int64_t{size.num_rows} * size.num_kv_heads * plan.head_blocks;
  if (blocks > 0 && size.scratch_bytes >= needed) {
    plan.splits = static_cast<int>(
        std::clamp<std::int64_t>(std::int64_t{kPlainBlocks} * device.num_processors / blocks, 1,
                                 std::max<std::int64_t>(1, spans)));
  }
  return plan;
}

std::size_t attention_scratch_bytes(int num_heads, int head_dim, int max_rows,
                                    std::int64_t max_context) {
  const std::size_t parts = static_cast<std::size_t>(max_rows) *
                            static_cast<std::size_t>(num_heads) * kBundleParts *
                            static_cast<std::size_t>(num_bundles(max_context));
  const auto part_bytes = sizeof(float) * static_cast<std::size_t>(part_floats(head_dim));
  return std::min(parts * part_bytes, kMaxScratchBytes);
}

}  // namespace tandem::cuda
