#include "kernels/cuda/attention_plan.h"

#include <algorithm>

#include "base/error.h"

namespace tandem::cuda {
namespace {

constexpr int kMaxColumns = 32;
constexpr int kPlainHeads = 8;
// Blocks for each processor before splitting stops paying.
constexpr int kPlainBlocks = 3;
constexpr std::size_t kMaxScratchBytes = std::size_t{256} << 20;
// What a processor sets aside for each block that it runs.
constexpr std::size_t kReservedSharedBytes = 1024;
// What is not counted in a layout: whether this block was the last to arrive.
constexpr std::size_t kGeneratedStaticBytes = 128;

int divide_up(int n, int unit) { return (n + unit - 1) / unit; }

GeneratedLayout lay_out(const GeneratedPlan& plan, const AttentionSize& size, int slots) {
  const int dim = padded_head_dim(size.head_dim);
  const int scales = size.element_bytes == 1 ? 2 * step_keys(dim, 1) * 4 : 0;
  GeneratedLayout at;
  at.queries = kStrands * slots * kSlotBytes;
  at.scales = at.queries + query_places(slots) * plan.used_columns() * dim * 2;
  at.headers = at.scales + kStrands * scale_places(slots) * scales;
  at.units = at.headers + kStrands * 8 * 2 * 4;
  at.bytes = at.units + generated_threads(plan.columns) / 32 * unit_places(slots) * kUnitBytes;
  return at;
}

// As many blocks for a processor as registers allow, if each then has enough slots. Returns how
// many.
int divide_shared_memory(const AttentionSize& size, const AttentionDevice& device,
                         GeneratedPlan& plan) {
  const std::size_t whole = device.shared_bytes_per_block + kReservedSharedBytes;
  for (int blocks = generated_blocks(plan.columns); blocks > 0; --blocks) {
    const std::size_t share = whole / static_cast<std::size_t>(blocks) - kReservedSharedBytes;
    const int least = blocks > 1 ? kEnoughSlots : kMinSlots;
    for (plan.slots = kMaxSlots; plan.slots >= least; --plan.slots) {
      plan.shared = lay_out(plan, size, plan.slots);
      if (static_cast<std::size_t>(plan.shared.bytes) + kGeneratedStaticBytes <= share) {
        return blocks;
      }
    }
  }
  TANDEM_CHECK(false, "a block has {} bytes of shared memory", device.shared_bytes_per_block);
}

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
  const int used = plan.used_columns();
  plan.columns = used <= 8 ? 8 : used <= 16 ? 16 : kMaxColumns;

  // Blocks stay and walk over units and spans: as many as the processors run at a time.
  const int per_processor = divide_shared_memory(size, device, plan);
  const std::int64_t units = std::int64_t{size.num_rows} * size.num_kv_heads * plan.head_units;
  const std::int64_t spans =
      size.max_context > 0 ? span_of(static_cast<int>(size.max_context - 1)) + 1 : 1;
  plan.grid = static_cast<int>(
      std::min<std::int64_t>(units * spans, std::int64_t{device.num_processors} * per_processor));

  const std::size_t bundle_bytes =
      sizeof(float) * kBundleParts *
      static_cast<std::size_t>(paired_columns(used) * part_floats(size.head_dim));
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
  // A row's heads may be columns of as many units, each an odd one.
  const auto columns =
      static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(num_heads * paired_columns(1));
  const std::size_t parts =
      columns * kBundleParts * static_cast<std::size_t>(num_bundles(max_context));
  const auto part_bytes = sizeof(float) * static_cast<std::size_t>(part_floats(head_dim));
  return std::min(parts * part_bytes, kMaxScratchBytes);
}

}  // namespace tandem::cuda
