#include "checkpoint/shard_plan.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"

namespace tandem {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

void check_rank(int rank, int size) {
  TANDEM_CHECK(size > 0 && rank >= 0 && rank < size, "rank {} of {}", rank, size);
}

struct SplitRule {
  std::string_view suffix;
  SplitKind kind;
};

// Column-parallel projections keep rows, row-parallel ones keep columns: every block ends in one
// all-reduce. What is not listed (norms, mtp.fc) is replicated.
constexpr std::array kQwen3_8Rules{
    SplitRule{"embed_tokens.weight", SplitKind::kVocabularyRows},
    SplitRule{"lm_head.weight", SplitKind::kVocabularyRows},
    SplitRule{"self_attn.q_proj.weight", SplitKind::kHeadRows},
    SplitRule{"self_attn.k_proj.weight", SplitKind::kHeadRows},
    SplitRule{"self_attn.v_proj.weight", SplitKind::kHeadRows},
    SplitRule{"self_attn.o_proj.weight", SplitKind::kColumns},
    SplitRule{"linear_attn.in_proj_qkv.weight", SplitKind::kSegmentRows},
    SplitRule{"linear_attn.conv1d.weight", SplitKind::kSegmentRows},
    SplitRule{"linear_attn.in_proj_z.weight", SplitKind::kRows},
    SplitRule{"linear_attn.in_proj_a.weight", SplitKind::kRows},
    SplitRule{"linear_attn.in_proj_b.weight", SplitKind::kRows},
    SplitRule{"linear_attn.A_log", SplitKind::kRows},
    SplitRule{"linear_attn.dt_bias", SplitKind::kRows},
    SplitRule{"linear_attn.out_proj.weight", SplitKind::kColumns},
    SplitRule{"mlp.gate_proj.weight", SplitKind::kRows},
    SplitRule{"mlp.up_proj.weight", SplitKind::kRows},
    SplitRule{"mlp.down_proj.weight", SplitKind::kColumns},
};

SplitKind kind_of(std::string_view name) {
  for (const auto& rule : kQwen3_8Rules) {
    if (name.ends_with(rule.suffix)) return rule.kind;
  }
  return SplitKind::kReplicated;
}

// Query and gate of a head are neighbours in q_proj: they are split as one.
RowRange split_attention_heads(const ModelConfig& config, std::string_view name, int rank,
                               int size) {
  if (name.ends_with("q_proj.weight")) {
    return split_heads(config.num_attention_heads, 2 * config.head_dim, rank, size);
  }
  return split_heads(config.num_key_value_heads, config.head_dim, rank, size);
}

}  // namespace

RowRange split_even(std::int64_t n, int rank, int size) {
  check_rank(rank, size);
  TANDEM_CHECK(n % size == 0, "{} over {} ranks", n, size);
  return {n / size * rank, n / size * (rank + 1)};
}

ColRange split_even_cols(std::int64_t n, int rank, int size) {
  const RowRange range = split_even(n, rank, size);
  return {range.begin, range.end};
}

std::int64_t padded_shard_rows(std::int64_t n, int size, std::int64_t multiple) {
  return ceil_div(ceil_div(n, size), multiple) * multiple;
}

RowRange split_padded(std::int64_t n, int rank, int size, std::int64_t multiple) {
  check_rank(rank, size);
  const std::int64_t rows = padded_shard_rows(n, size, multiple);
  return {std::min(n, rows * rank), std::min(n, rows * (rank + 1))};
}

RowRange split_heads(std::int64_t num_heads, std::int64_t head_rows, int rank, int size) {
  check_rank(rank, size);
  if (num_heads >= size) {
    const RowRange heads = split_even(num_heads, rank, size);
    return {heads.begin * head_rows, heads.end * head_rows};
  }
  TANDEM_CHECK(size % num_heads == 0, "{} heads over {} ranks", num_heads, size);
  const std::int64_t head = rank * num_heads / size;
  return {head * head_rows, (head + 1) * head_rows};
}

std::vector<RowRange> split_segments(std::span<const std::int64_t> segments, int rank, int size) {
  std::vector<RowRange> rows;
  std::int64_t begin = 0;
  for (const std::int64_t segment : segments) {
    const RowRange part = split_even(segment, rank, size);
    rows.push_back({begin + part.begin, begin + part.end});
    begin += segment;
  }
  return rows;
}

std::string_view split_name(SplitKind kind) {
  switch (kind) {
    case SplitKind::kReplicated:
      return "replicated";
    case SplitKind::kVocabularyRows:
      return "vocabulary rows";
    case SplitKind::kRows:
      return "rows";
    case SplitKind::kHeadRows:
      return "rows, by head";
    case SplitKind::kSegmentRows:
      return "rows, per segment";
    case SplitKind::kColumns:
      return "columns";
  }
  return "?";
}

TensorSplit qwen3_8_split(const ModelConfig& config, std::string_view name,
                          const TensorShape& shape, int rank, int size) {
  TensorSplit split;
  split.kind = kind_of(name);
  split.num_rows = shape.empty() ? 1 : shape.front();
  split.num_cols = split.num_rows == 0 ? 0 : shape_numel(shape) / split.num_rows;
  switch (split.kind) {
    case SplitKind::kReplicated:
      return split;
    case SplitKind::kVocabularyRows:
      split.rows = {split_padded(split.num_rows, rank, size)};
      break;
    case SplitKind::kRows:
      split.rows = {split_even(split.num_rows, rank, size)};
      break;
    case SplitKind::kHeadRows:
      split.rows = {split_attention_heads(config, name, rank, size)};
      break;
    case SplitKind::kSegmentRows: {
      const std::array segments{config.linear_key_width(), config.linear_key_width(),
                                config.linear_value_width()};
      split.rows = split_segments(segments, rank, size);
      break;
    }
    case SplitKind::kColumns:
      split.cols = split_even_cols(split.num_cols, rank, size);
      split.num_cols = split.cols->count();
      return split;
  }
  split.num_rows = 0;
  for (const auto& range : split.rows) split.num_rows += range.count();
  return split;
}

std::vector<std::string> qwen3_8_split_faults(const ModelConfig& config, int size) {
  std::vector<std::string> faults;
  const auto require = [&](const char* what, std::int64_t n) {
    if (n % size != 0) {
      faults.push_back(fmt::format("{} {} does not divide by {} ranks", what, n, size));
    }
  };
  require("num_attention_heads", config.num_attention_heads);
  require("linear_num_key_heads", config.linear_num_key_heads);
  require("linear_num_value_heads", config.linear_num_value_heads);
  require("intermediate_size", config.intermediate_size);
  const std::int64_t kv_heads = config.num_key_value_heads;
  if (kv_heads % size != 0 && size % kv_heads != 0) {
    faults.push_back(fmt::format("num_key_value_heads {} and {} ranks: neither divides the other",
                                 kv_heads, size));
  }
  return faults;
}

ScaleSlice slice_scales(std::int64_t block_rows, std::int64_t block_cols, std::int64_t all_cols,
                        std::span<const RowRange> rows, ColRange cols) {
  ScaleSlice slice{.block_rows = block_rows, .block_cols = block_cols, .rows = {}, .cols = {}};
  // A range has to begin on a multiple of the area both in the tensor and in the slice; where it
  // ends matters only to the range behind it.
  std::int64_t kept = 0;
  for (const auto& range : rows) {
    slice.block_rows = std::gcd(std::gcd(slice.block_rows, range.begin), kept);
    kept += range.count();
  }
  for (const auto& range : rows) {
    for (std::int64_t n = range.begin; n < range.end; n += slice.block_rows) {
      slice.rows.push_back(n / block_rows);
    }
  }
  slice.block_cols = block_cols >= all_cols ? std::max<std::int64_t>(1, cols.count())
                                            : std::gcd(block_cols, cols.begin);
  for (std::int64_t k = cols.begin; k < cols.end; k += slice.block_cols) {
    slice.cols.push_back(k / block_cols);
  }
  return slice;
}

std::optional<std::string> packed_split_fault(const WeightLayout& layout, SplitAxis axis,
                                              int size) {
  const bool rows = axis == SplitAxis::kRows;
  const std::int64_t extent = rows ? layout.matrix_rows : layout.cols;
  const bool packed =
      layout.format == WeightFormat::kNvfp4 || layout.format == WeightFormat::kMxfp4;
  const std::int64_t unit = packed && !rows ? 2 : 1;  // codes of one byte
  if (extent % (size * unit) == 0) return std::nullopt;
  return fmt::format("tensor \"{}\" ({}): {} {} do not divide into {} parts{}; use fewer ranks",
                     layout.weight, format_name(layout.format), extent, rows ? "rows" : "columns",
                     size, unit == 2 ? " of whole bytes" : "");
}

}  // namespace tandem
