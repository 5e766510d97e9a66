// Which part of a tensor one rank keeps: the arithmetic of tensor-parallel slices, and the table of
// how each tensor of a family is split (qwen3_8: vocabulary rows, heads, each segment of
// in_proj_qkv by itself). Reading the slices is loader.h's.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/model_config.h"
#include "checkpoint/quant_format.h"
#include "checkpoint/safetensors.h"

namespace tandem {

// Half-open ranges of rows (dimension 0) and columns (the remaining dimensions, flattened).
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count() const { return end - begin; }
  bool operator==(const RowRange&) const = default;
};
struct ColRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count() const { return end - begin; }
  bool operator==(const ColRange&) const = default;
};

// n must be a multiple of size: a broken invariant otherwise (callers check divisibility with
// qwen3_8_split_faults first).
RowRange split_even(std::int64_t n, int rank, int size);
ColRange split_even_cols(std::int64_t n, int rank, int size);
// Shards of ceil(n / size) rows rounded up to a multiple of `multiple`; the last ones are shorter
// or empty, and their missing rows are the caller's to fill with zeros.
std::int64_t padded_shard_rows(std::int64_t n, int size, std::int64_t multiple = 1);
RowRange split_padded(std::int64_t n, int rank, int size, std::int64_t multiple = 1);
// Rows of `num_heads` heads with `head_rows` rows each. With fewer heads than ranks each head is
// kept by size / num_heads neighbouring ranks.
RowRange split_heads(std::int64_t num_heads, std::int64_t head_rows, int rank, int size);
// Consecutive segments, each split evenly: the rows of rank r are segment 0's part, segment 1's,
// ...
std::vector<RowRange> split_segments(std::span<const std::int64_t> segments, int rank, int size);

enum class SplitKind { kReplicated, kVocabularyRows, kRows, kHeadRows, kSegmentRows, kColumns };
std::string_view split_name(SplitKind kind);  // "rows, per segment", ...

struct TensorSplit {
  SplitKind kind = SplitKind::kReplicated;
  std::vector<RowRange> rows;    // kept rows in order; empty: all
  std::optional<ColRange> cols;  // empty: all
  std::int64_t num_rows = 0;     // kept, without padding
  std::int64_t num_cols = 0;
};

// How `name` (without the text prefix: "layers.3.self_attn.q_proj.weight", "lm_head.weight",
// "mtp.fc.weight") is split. Unknown names are replicated.
TensorSplit qwen3_8_split(const ModelConfig& config, std::string_view name,
                          const TensorShape& shape, int rank, int size);
// Everything that does not divide by `size` ranks; empty if the model can be split.
std::vector<std::string> qwen3_8_split_faults(const ModelConfig& config, int size);

// The scales of a slice. A border that cuts a block leaves parts of it that take the block's scale:
// the area of one scale in memory is the largest divisor of the block that no border cuts, and a
// cut block's scale stands there more than once. Exact for every slice.
struct ScaleSlice {
  std::int64_t block_rows = 1;  // elements under one scale in memory
  std::int64_t block_cols = 1;
  std::vector<std::int64_t> rows;  // [i]: row of the whole weight's scales that is row i here
  std::vector<std::int64_t> cols;  // [j]: the same of columns
};
// `rows` and `cols` as in TensorRequest, filled in. block_cols >= all_cols: one scale a row.
ScaleSlice slice_scales(std::int64_t block_rows, std::int64_t block_cols, std::int64_t all_cols,
                        std::span<const RowRange> rows, ColRange cols);

// A shard must hold whole bytes of codes; it may cut blocks (slice_scales), at the price of the
// level rank_invariant. Returns what is wrong (tensor, extent, what to do), empty if nothing is.
enum class SplitAxis { kRows, kColumns };
std::optional<std::string> packed_split_fault(const WeightLayout& layout, SplitAxis axis, int size);

}  // namespace tandem
