// Scales of an FP8 KV cache as checkpoints store them: which tensors they are, and what must be
// true of them before anything is computed with them. A value is stored as e4m3(x / scale).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace tandem {

// Of one attention layer, for each KV head of the whole model.
struct KvScales {
  std::vector<float> k;  // [num_kv_heads]; one value for the layer stands for all heads
  std::vector<float> v;  // [num_kv_heads]
};

// What to do when every scale is 1.0 or there is none: nobody has measured this cache then.
// Anything beyond 448 would be cut off and anything small rounded coarsely, which shows as loops
// after some hundred tokens.
enum class UnitScales { kRefuse, kAccept };

// The scales of the attention layers named by `prefixes` ("model.layers.3.self_attn."), in their
// order. Known names, below a prefix: k_proj.k_scale and v_proj.v_scale (ModelOpt), k_scale and
// v_scale, attn.k_scale and attn.v_scale, kv_scale for both; of one element or of num_kv_heads;
// F32, BF16 or F16. Reads a few bytes a layer. Throws Error{kConfiguration} that lists every layer
// without scales and every scale that is not usable, for scales declared for another format, and
// for uncalibrated ones unless they are accepted: layers without any then get 1.0.
std::vector<KvScales> read_kv_scales(const Checkpoint& checkpoint,
                                     const std::vector<std::string>& prefixes,
                                     std::int64_t num_kv_heads, UnitScales unit_scales);

// What is known of the scales that a cache works with.
enum class KvCalibration {
  kNotNeeded,  // no scales, or made with every entry
  kMeasured,
  kUnit,  // 1.0 throughout: not calibrated
};

// Whether some scale differs from 1.0.
bool calibrated(const std::vector<KvScales>& layers);

}  // namespace tandem
