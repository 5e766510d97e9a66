// Collects what a model wants from its checkpoint while its layers are being constructed: each call
// takes memory for the shard of one tensor, records the request for the loader, and returns the
// view a kernel needs. In a planning pass the memory is null and only the sizes count.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/loader.h"
#include "checkpoint/shard_plan.h"
#include "kernels/ops/linear.h"
#include "memory/part_allocator.h"

namespace tandem {

// Which shard of the tensor-parallel group this is.
struct TensorParallel {
  int rank = 0;
  int size = 1;
};

class WeightBinder {
 public:
  // Type of a tensor in the checkpoint; empty when it is not there (the loader will say so) or when
  // there is no checkpoint (dummy weights).
  using SourceDType = std::function<std::optional<DType>(const std::string&)>;

  WeightBinder(PartAllocator& allocator, TensorParallel tensor_parallel, SourceDType source_dtype);

  TensorParallel tensor_parallel() const { return tensor_parallel_; }
  // The part that the following weights belong to.
  void set_part(std::string_view part) { part_ = part; }

  // A matrix [out, in] of which this rank keeps `rows` (empty: all) and `cols` (empty: all). BF16
  // stays BF16; F32 and F16 become F32. `padded_rows` > kept rows leaves zeroed rows at the end.
  ops::LinearWeight matrix(const std::string& name, std::int64_t out, std::int64_t in,
                           std::vector<RowRange> rows, std::optional<ColRange> cols,
                           std::int64_t padded_rows = 0);
  // A small tensor in fp32: norms, gates, convolution taps. `shape` is the checkpoint's.
  const float* vector_f32(const std::string& name, std::vector<std::int64_t> shape,
                          std::vector<RowRange> rows = {});

  const std::vector<TensorRequest>& requests() const { return requests_; }
  std::vector<TensorRequest> take_requests() { return std::move(requests_); }

 private:
  PartAllocator& allocator_;
  TensorParallel tensor_parallel_;
  SourceDType source_dtype_;
  std::string_view part_;
  std::vector<TensorRequest> requests_;
};

}  // namespace tandem
