#include "layers/linear.h"

#include <numeric>
#include <utility>

#include "base/error.h"

namespace tandem {

int num_tree_leaves(std::int64_t blocks) {
  int leaves = 1;
  while (leaves < 8 && blocks % (2 * leaves) == 0) leaves *= 2;
  return leaves;
}

std::int64_t tree_units(std::int64_t columns, std::int64_t blocks, std::int64_t scale_columns) {
  const std::int64_t unit = std::lcm(columns / blocks, scale_columns);
  return columns % unit == 0 ? columns / unit : 1;
}

ColumnLinear::ColumnLinear(WeightBinder& binder, const std::string& name, std::int64_t out,
                           std::int64_t in, std::vector<RowRange> rows)
    : weight_(binder.matrix(name, out, in, std::move(rows), std::nullopt)) {}

ops::LinearArgs ColumnLinear::args(const LayerContext& context, const LayerInput& in, void* y,
                                   DType y_dtype) const {
  return {.x = in.x,
          .x_dtype = context.activations,
          .x_stride = weight_.in_features,
          .num_rows = in.rows,
          .weight = weight_,
          .row_class = context.row_class,
          .num_leaves = 1,
          .row_factors = in.row_factors,
          .y = y,
          .y_dtype = y_dtype,
          .y_stride = weight_.out_features};
}

void ColumnLinear::forward(const LayerContext& context, const LayerInput& in, void* y,
                           DType y_dtype) const {
  ops::linear(context.backend, args(context, in, y, y_dtype));
}

void forward_together(const LayerContext& context, const LayerInput& in,
                      std::initializer_list<ColumnOutput> outputs) {
  TANDEM_CHECK(outputs.size() <= ops::kMaxLinearGroup);
  ops::LinearArgs group[ops::kMaxLinearGroup];
  std::size_t count = 0;
  for (const auto& o : outputs) group[count++] = o.layer.args(context, in, o.y, o.y_dtype);
  ops::linear_group(context.backend, {group, count});
}

RowLinear::RowLinear(WeightBinder& binder, const std::string& name, std::int64_t out,
                     std::int64_t in, std::int64_t tree_blocks) {
  const auto [rank, size] = binder.tensor_parallel();
  weight_ = binder.matrix(name, out, in, {}, split_even_cols(in, rank, size));
  // Where the ranks do not own whole subtrees (three ranks, say, or three scale blocks on two
  // ranks) each rank's share is one leaf; the level rank_invariant is refused for such a layout.
  const int leaves = num_tree_leaves(tree_units(in, tree_blocks, binder.scale_columns(name)));
  local_leaves_ = leaves % size == 0 ? leaves / size : 1;
  if (leaves % size != 0) binder.note_rank_dependent(name);
}

void RowLinear::forward(const LayerContext& context, const void* x, int rows, float* y) const {
  ops::linear(context.backend, {.x = x,
                                .x_dtype = context.activations,
                                .x_stride = weight_.in_features,
                                .num_rows = rows,
                                .weight = weight_,
                                .row_class = context.row_class,
                                .num_leaves = local_leaves_,
                                .y = y,
                                .y_dtype = DType::kF32,
                                .y_stride = weight_.out_features});
  context.comm.all_reduce_tree_f32(y, static_cast<std::int64_t>(rows) * weight_.out_features);
}

}  // namespace tandem
