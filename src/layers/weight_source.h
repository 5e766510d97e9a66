// Where the weights of a model come from, as far as its layers have to know before anything is
// loaded: how each is stored. The bytes are the loader's to read, or the dummy weights' to make up.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/kv_scales.h"
#include "checkpoint/quant_format.h"

namespace tandem {

struct StoredFormat {
  WeightFormat format = WeightFormat::kBf16;
  // Of quantized formats: type of the scales, and the elements of the whole weight under one.
  DType scale_dtype = DType::kF32;
  std::int64_t block_rows = 1;
  std::int64_t block_cols = 1;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  // Empty: there is no such weight; whoever fills it in will say so.
  virtual std::optional<StoredFormat> find(const std::string& name) const = 0;
  // The one factor of a whole quantized weight of `in` columns: NVFP4's second-level scale in the
  // convention that multiplies, the scale of FP8 per tensor; 1 in other formats. Kernels take it
  // from the host, so it must be known when a layer is built; reads a few bytes. Throws
  // Error{kConfiguration} if the checkpoint's is not usable.
  virtual float factor(const std::string& name, std::int64_t in) const = 0;
  // Of an FP8 KV cache, one for each attention layer: as read_kv_scales(), which says what it
  // throws.
  virtual std::vector<KvScales> kv_scales(const std::vector<std::string>& prefixes,
                                          std::int64_t num_kv_heads,
                                          UnitScales unit_scales) const = 0;
};

class CheckpointWeights final : public WeightSource {
 public:
  // Throws Error{kConfiguration} that lists every weight whose format is not known or contradicts
  // the declaration.
  explicit CheckpointWeights(Checkpoint checkpoint);

  std::optional<StoredFormat> find(const std::string& name) const override;
  float factor(const std::string& name, std::int64_t in) const override;
  std::vector<KvScales> kv_scales(const std::vector<std::string>& prefixes,
                                  std::int64_t num_kv_heads, UnitScales unit_scales) const override;

 private:
  Checkpoint checkpoint_;                                  // headers only
  std::unordered_map<std::string, WeightLayout> layouts_;  // by request_name
};

}  // namespace tandem
