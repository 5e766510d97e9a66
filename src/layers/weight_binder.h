// Collects what a model wants from its checkpoint while its layers are being constructed: each call
// takes memory for the shard of one tensor, records the request for the loader, and returns the
// view a kernel needs. Matrices stay in the format they are stored in where the backend has a
// kernel for it. In a planning pass the memory is null and only the sizes count.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/loader.h"
#include "checkpoint/shard_plan.h"
#include "kernels/ops/linear.h"
#include "layers/weight_source.h"
#include "memory/part_allocator.h"

namespace tandem {

// Which shard of the tensor-parallel group this is.
struct TensorParallel {
  int rank = 0;
  int size = 1;
};

class WeightBinder {
 public:
  // `source` must outlive this. `backend`: the one that will compute with the weights.
  WeightBinder(PartAllocator& allocator, TensorParallel tensor_parallel, const WeightSource& source,
               BackendKind backend);

  TensorParallel tensor_parallel() const { return tensor_parallel_; }
  // The part that the following weights belong to.
  void set_part(std::string_view part) { part_ = part; }

  // A matrix [out, in] of which this rank keeps `rows` (empty: all) and `cols` (empty: all), for a
  // linear. BF16 and quantized formats stay as stored; F32 and F16 become F32. `padded_rows` > kept
  // rows leaves room for so many at the end.
  ops::LinearWeight matrix(const std::string& name, std::int64_t out, std::int64_t in,
                           std::vector<RowRange> rows, std::optional<ColRange> cols,
                           std::int64_t padded_rows = 0);
  // The same for a table whose rows are looked up: quantized ones are widened.
  ops::LinearWeight table(const std::string& name, std::int64_t out, std::int64_t in,
                          std::vector<RowRange> rows, std::int64_t padded_rows = 0);
  // A small tensor in fp32: norms, gates, convolution taps. `shape` is the checkpoint's.
  const float* vector_f32(const std::string& name, std::vector<std::int64_t> shape,
                          std::vector<RowRange> rows = {});

  // Columns of the whole matrix that share a scale a kernel applies to their sum or their products:
  // the leaves of its reduction tree must not cut them. 1 where any cut will do.
  std::int64_t scale_columns(const std::string& name) const;

  // Weights whose sums depend on the number of ranks: their trees have fewer leaves than there are
  // ranks, or no whole number a rank.
  void note_rank_dependent(const std::string& name) { rank_dependent_.push_back(name); }
  std::vector<std::string> take_rank_dependent() { return std::move(rank_dependent_); }

  const std::vector<TensorRequest>& requests() const { return requests_; }
  std::vector<TensorRequest> take_requests() { return std::move(requests_); }
  // "64 of format nvfp4, ...": quantized weights that take the memory of F32, for want of a kernel.
  // Empty: none.
  std::string widened() const;

 private:
  // The format of `name` if it is quantized and kept that way.
  std::optional<StoredFormat> kept_format(const std::string& name) const;
  ops::LinearWeight quantized(const StoredFormat& stored, TensorRequest request,
                              std::int64_t padded_rows);
  ops::LinearWeight plain(TensorRequest request, std::int64_t padded_rows);

  PartAllocator& allocator_;
  TensorParallel tensor_parallel_;
  const WeightSource& source_;
  BackendKind backend_;
  std::string_view part_;
  std::vector<TensorRequest> requests_;
  std::map<WeightFormat, int> num_widened_;
  std::vector<std::string> rank_dependent_;
};

}  // namespace tandem
