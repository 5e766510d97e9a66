// Random weights in the shapes of a checkpoint that is not there: full-size rehearsals without a
// download. A value depends on the tensor's name and the element's place in the whole tensor, so
// every number of ranks sees the same model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/loader.h"
#include "config/job_config.h"
#include "kernels/backend.h"
#include "layers/weight_source.h"

namespace tandem {

// How dummy weights are stored: all of it as in the published checkpoints of a format.
//   fp8_block, fp8_channel, int8_group   every projection of attention, Gated DeltaNet and MLP, the
//                                        MTP layer's too (Qwen3.8-27B-FP8: blocks of 128 x 128,
//                                        BF16 scales); groups of 128 columns
//   nvfp4                                MLP and head NVFP4, the other projections FP8 per tensor,
//                                        the MTP head BF16 (nvidia's Qwen3.8-27B-NVFP4)
// Embedding, norms, gates, convolutions and mtp.fc are BF16 in all of them.
class DummyWeights final : public WeightSource {
 public:
  // `checkpoint`: its headers are followed with DummyFormat::kAuto if it has any.
  DummyWeights(DummyFormat format, const Checkpoint& checkpoint);

  std::optional<StoredFormat> find(const std::string& name) const override;
  float factor(const std::string& name, std::int64_t in) const override;
  std::vector<KvScales> kv_scales(const std::vector<std::string>& prefixes,
                                  std::int64_t num_kv_heads, UnitScales unit_scales) const override;

 private:
  DummyFormat format_;
  std::optional<CheckpointWeights> headers_;
};

// Writes every requested slice to its place, which may be in device memory.
void fill_dummy_weights(const std::vector<TensorRequest>& requests, Backend& backend);

}  // namespace tandem
