#include "layers/weight_source.h"

#include <utility>

#include "base/error.h"
#include "checkpoint/dequantize.h"

namespace tandem {

CheckpointWeights::CheckpointWeights(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {
  for (auto& layout : read_weight_formats(checkpoint_).weights) {
    std::string name = request_name(layout);
    layouts_.emplace(std::move(name), std::move(layout));
  }
}

std::optional<StoredFormat> CheckpointWeights::find(const std::string& name) const {
  const auto found = layouts_.find(name);
  if (found == layouts_.end()) return std::nullopt;
  const WeightLayout& layout = found->second;
  return StoredFormat{.format = layout.format,
                      .scale_dtype = layout.scale_dtype,
                      .block_rows = layout.block_rows,
                      .block_cols = layout.block_cols};
}

float CheckpointWeights::factor(const std::string& name, std::int64_t) const {
  const auto found = layouts_.find(name);
  TANDEM_CHECK(found != layouts_.end(), "{}", name);
  return read_weight_factor(checkpoint_, found->second);
}

std::vector<KvScales> CheckpointWeights::kv_scales(const std::vector<std::string>& prefixes,
                                                   std::int64_t num_kv_heads,
                                                   UnitScales unit_scales) const {
  return read_kv_scales(checkpoint_, prefixes, num_kv_heads, unit_scales);
}

}  // namespace tandem
