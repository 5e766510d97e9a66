#include "kernels/cuda/attention_plan.h"

#include <algorithm>

namespace tandem::cuda {
namespace {

constexpr int kTileColumns = 8;
constexpr int kMaxTiles = 4;
constexpr int kPlainHeads = 8;
// Blocks for each processor before splitting stops paying.
constexpr int kWantedBlocks = 3;

int divide_up(int n, int unit) { return (n + unit - 1) / unit; }

std::size_t shared_bytes(const AttentionSize& size, int tiles) {
  constexpr std::size_t kKeys = ops::kAttentionPartition;
  const auto dim = static_cast<std::size_t>(size.head_dim);
  if (size.path == AttentionPath::kPlain) {
    return sizeof(float) * kPlainHeads * (dim + kKeys);  // queries, scores
  }
  const auto columns = static_cast<std::size_t>(kTileColumns * tiles);
  // Queries in rows of whole steps of 32, padded; high and low parts of the probabilities, padded.
  const std::size_t query_row = (dim + 31) / 32 * 32 + 32;
  return sizeof(std::uint16_t) * columns * (query_row + 2 * (kKeys + 16));
}

}  // namespace

AttentionPath attention_path(DType dtype, DType page_dtype) {
  return dtype == DType::kBF16 && page_dtype == DType::kBF16 ? AttentionPath::kTensor
                                                             : AttentionPath::kPlain;
}

AttentionPlan plan_attention(const AttentionSize& size, int num_processors) {
  AttentionPlan plan;
  if (size.path == AttentionPath::kPlain) {
    plan.heads_per_block = std::min(size.group, kPlainHeads);
  } else {
    plan.heads_per_block = std::min(size.group, kTileColumns * kMaxTiles);
    // Rows of one sequence share its keys and values; blocks that hold whole segments do not mix
    // sequences.
    const int fitting = kTileColumns * kMaxTiles / plan.heads_per_block;
    const int segment_rows = divide_up(size.num_rows, std::max(1, size.num_segments));
    plan.rows_per_block = std::clamp(segment_rows, 1, fitting);
    plan.tiles = divide_up(plan.rows_per_block * plan.heads_per_block, kTileColumns);
    if (plan.tiles == 3) plan.tiles = 4;  // no kernel of its own
  }
  plan.head_blocks = divide_up(size.group, plan.heads_per_block);
  plan.row_blocks = divide_up(size.num_rows, plan.rows_per_block);
  plan.shared_bytes = shared_bytes(size, plan.tiles);

  const std::int64_t spans = num_spans(size.max_context);
  const auto needed = static_cast<std::size_t>(size.num_rows) *
                      static_cast<std::size_t>(size.group * size.num_kv_heads) *
                      static_cast<std::size_t>(spans * span_floats(size.head_dim)) * sizeof(float);
  const std::int64_t blocks = std::int64_t{plan.row_blocks} * size.num_kv_heads * plan.head_blocks;
  if (blocks > 0 && size.scratch_bytes >= needed) {
    plan.splits = static_cast<int>(std::clamp<std::int64_t>(kWantedBlocks * num_processors / blocks,
                                                            1, std::max<std::int64_t>(1, spans)));
  }
  return plan;
}

}  // namespace tandem::cuda
