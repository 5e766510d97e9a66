// Binds the tensors a model asks for to the tensors of a checkpoint, strictly, and reads the slices
// one rank keeps: only those bytes, in bounded chunks, giving the page cache back. What each rank
// keeps is decided by the caller (shard_plan.h); where it goes, by the caller's arena.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/types.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quant_format.h"
#include "checkpoint/shard_plan.h"

namespace tandem {

// F32 weights become BF16 only where the model says that this loses nothing that matters.
enum class Narrowing { kRefuse, kAllow };

// Keeps a quantized weight as it is stored: the codes, two a byte in 4-bit formats, in the
// request's dst, and here its scales.
struct QuantizedTarget {
  WeightFormat format = WeightFormat::kFp8Block;
  DType scale_dtype = DType::kF32;
  std::int64_t block_rows = 1;  // of the whole weight: elements under one scale
  std::int64_t block_cols = 1;
  // [slice_scales().rows, .cols] of the kept rows and columns, packed. Unused with one scale for
  // the whole weight, which is for the caller to read (read_weight_factor).
  void* scales = nullptr;

  bool has_scales() const { return format != WeightFormat::kFp8Tensor; }
};

struct TensorRequest {
  std::string name;                 // full name in the checkpoint
  TensorShape shape;                // of the whole tensor, exactly ([C, 1, 4] is not [C, 4])
  std::vector<RowRange> rows = {};  // kept ranges of dimension 0, in order; empty: all
  std::optional<ColRange> cols =
      {};                   // kept columns of the remaining dimensions, flattened; empty: all
  DType as = DType::kBF16;  // type of values in memory: BF16 or F32
  Narrowing narrowing = Narrowing::kRefuse;
  std::optional<QuantizedTarget> quantized = {};  // codes instead of values; `as` is not used
  void* dst = nullptr;              // [kept rows, dst_row_stride]; rows of padding are the caller's
  std::int64_t dst_row_stride = 0;  // in elements; 0: the kept columns, packed
};

// The request's ranges with "all" spelled out.
std::vector<RowRange> kept_row_ranges(const TensorRequest& request);
ColRange kept_col_range(const TensorRequest& request);
// Bytes of the kept columns of one row in memory.
std::int64_t memory_row_bytes(const TensorRequest& request);

// Tensors that nobody asked for and that may be there: "model.visual.*". `*` matches any text.
struct IgnorePattern {
  std::string glob;
  std::string what;  // "the visual tower": logged once as skipped if anything matched
};

struct LoadProgress {
  std::int64_t bytes_done = 0;  // of Loader::bytes_to_read()
  std::int64_t bytes_total = 0;
};

// Quantized weights of which values are requested: refuse them, or widen them to the requested type
// (exact in F32, rounded once in BF16) at the cost of the memory the quantization would have saved.
enum class QuantizedWeights { kRefuse, kWiden };

struct BindOptions {
  std::vector<IgnorePattern> ignore = {};
  QuantizedWeights quantized = QuantizedWeights::kRefuse;
};

struct LoadOptions {
  std::int64_t staging_bytes = std::int64_t{8} << 20;  // bound of the read buffer
  bool drop_page_cache = true;
  bool scan_for_nan = false;  // NaN or infinite values are errors naming the tensor
  std::function<void(const LoadProgress&)> progress = {};  // called after each chunk
  // Puts bytes at a destination that the host cannot write itself (device memory); empty: memcpy.
  // The source may be reused as soon as it returns.
  std::function<void(void* dst, const void* src, std::size_t bytes)> store = {};
};

struct LoadStats {
  std::int64_t bytes_read = 0;  // from files
  std::int64_t num_reads = 0;
  double seconds = 0;
};

class Loader {
 public:
  // Checks all requests against the checkpoint: present, exact shape, allowed dtype, ranges inside
  // the tensor; and the reverse: every tensor of the checkpoint requested or ignored. Throws
  // Error{kConfiguration} that lists every fault. Reads no weights. `checkpoint` must outlive this.
  Loader(const Checkpoint& checkpoint, std::vector<TensorRequest> requests, BindOptions options);

  // Of the weights; scales of quantized weights and page cache effects come on top.
  std::int64_t bytes_to_read() const { return bytes_to_read_; }
  // Every dst must be set. Throws Error{kInternal} on I/O errors, Error{kConfiguration} on weights
  // that are not usable. May be called again.
  LoadStats load(const LoadOptions& options) const;

 private:
  // A request resolved against the checkpoint.
  struct Binding {
    TensorRequest request;  // rows and cols filled in
    const TensorEntry* source = nullptr;
    WeightLayout layout;          // says how the source is stored; plain formats included
    std::int64_t total_cols = 0;  // of the whole tensor
  };
  class Binder;
  class Reader;

  const Checkpoint& checkpoint_;
  std::vector<Binding> bindings_;  // by file and offset
  std::int64_t bytes_to_read_ = 0;
};

}  // namespace tandem
