// Random-weight checkpoints of the Qwen3.8 family in any shape: the values in memory, for the
// double-precision forward, and the same values as files, for the engine. Names and shapes are
// those of qwen.md, sections 4.1, 5, 6 and 13.1, written down here once more on purpose.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/types.h"
#include "checkpoint/safetensors.h"

namespace tandem::testing {

enum class ExportStyle {
  kPlain,   // fields at the top of config.json, tensors "model. ..."
  kNested,  // fields in text_config, tensors "model.language_model. ...", a vision tower beside
            // them
};

struct ModelShape {
  std::string name;
  std::string layers = "LLLF";  // L: Gated DeltaNet, F: full attention
  int hidden = 96;
  int intermediate = 160;
  int vocab = 4096;  // at least the tokenizer's 4096 ids
  bool tied_head = false;
  bool mtp_head = true;

  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 64;
  double rotary_factor = 0.25;

  int linear_k_heads = 4;
  int linear_v_heads = 12;
  int k_dim = 32;
  int v_dim = 32;
  int conv_kernel = 4;
  bool sigmoid_gate = false;  // of the gated norm; SiLU otherwise

  DType stored = DType::kBF16;  // A_log and linear_attn.norm are F32 beside BF16, as released
  int num_files = 1;
  ExportStyle style = ExportStyle::kPlain;

  int max_ranks = 1;  // largest of 1, 2, 4 that divides the model

  int rotary_dim() const { return static_cast<int>(head_dim * rotary_factor + 0.5); }
  int key_width() const { return linear_k_heads * k_dim; }
  int value_width() const { return linear_v_heads * v_dim; }
  int channels() const { return 2 * key_width() + value_width(); }
};

// What the family allows and released checkpoints do not show: see the names.
const std::vector<ModelShape>& model_shapes();

class RandomCheckpoint {
 public:
  RandomCheckpoint(ModelShape shape, std::uint64_t seed);

  const ModelShape& shape() const { return shape_; }
  // By the name without the text prefix: "embed_tokens.weight", "layers.0.mlp.up_proj.weight",
  // "lm_head.weight", "mtp.fc.weight". Row-major, as rounded to the stored type.
  const std::vector<float>& values(const std::string& name) const;
  // config.json, weight files, and the tiny checkpoint's tokenizer and generation_config.json.
  void write(const std::filesystem::path& directory) const;

 private:
  struct Tensor {
    DType dtype = DType::kBF16;
    TensorShape shape;
    std::vector<float> values;
  };

  void add_decoder_layer(const std::string& prefix, char kind);
  void write_config(const std::filesystem::path& directory) const;
  std::string stored_name(const std::string& name) const;

  ModelShape shape_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace tandem::testing
