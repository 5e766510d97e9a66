// Linear layers by the way they are split over ranks. Parallelism is a property of the layer: model
// files name a tensor and its kind and never compute shard sizes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/ops/linear.h"
#include "layers/layer_context.h"
#include "layers/weight_binder.h"

namespace tandem {

struct ColumnOutput;

// Leaves of the reduction tree over a K axis that is split over ranks in units of `blocks` (heads,
// quantization blocks, or single columns): the largest power of two up to 8 that divides them. A
// constant of the tensor, never of the rank count (determinism.md, rule 2).
int num_tree_leaves(std::int64_t blocks);

// Units of a K axis of `columns` columns that a leaf must not cut: whole blocks (of which there are
// `blocks`) that also hold whole scale blocks of `scale_columns` columns; 1 if nothing divides.
std::int64_t tree_units(std::int64_t columns, std::int64_t blocks, std::int64_t scale_columns);

// Output features split over ranks (or whole on every rank): y = x W_r^T, no communication.
class ColumnLinear {
 public:
  // `rows`: the rows this rank keeps; empty: all (replicated).
  ColumnLinear(WeightBinder& binder, const std::string& name, std::int64_t out, std::int64_t in,
               std::vector<RowRange> rows);

  // Once the weight has been loaded (ops/linear.h).
  void prepack_weights(Backend& backend) { ops::prepack_weight(backend, weight_); }
  std::int64_t out_features() const { return weight_.out_features; }
  // x [rows, in] -> y [rows, out of this rank].
  void forward(const LayerContext& context, const LayerInput& in, void* y, DType y_dtype) const;

 private:
  friend void forward_together(const LayerContext& context, const LayerInput& in,
                               std::initializer_list<ColumnOutput> outputs);
  ops::LinearArgs args(const LayerContext& context, const LayerInput& in, void* y,
                       DType y_dtype) const;

  ops::LinearWeight weight_;
};

// One of several layers that read the same x.
struct ColumnOutput {
  const ColumnLinear& layer;
  void* y;
  DType y_dtype;
};
void forward_together(const LayerContext& context, const LayerInput& in,
                      std::initializer_list<ColumnOutput> outputs);

// Input features split over ranks: the sum over ranks is taken in the tensor's tree, in fp32.
class RowLinear {
 public:
  // `tree_blocks`: units that a leaf must not cut, such as heads; nor does it cut a scale block.
  RowLinear(WeightBinder& binder, const std::string& name, std::int64_t out, std::int64_t in,
            std::int64_t tree_blocks);

  void prepack_weights(Backend& backend) { ops::prepack_weight(backend, weight_); }
  // x [rows, in / ranks] -> y [rows, out] fp32, the whole sum on every rank.
  void forward(const LayerContext& context, const void* x, int rows, float* y) const;

 private:
  ops::LinearWeight weight_;
  int local_leaves_ = 1;
};

}  // namespace tandem
