// What config.json and generation_config.json say about a model, as typed and checked fields. Knows
// the three families; the tensors themselves are checkpoint.h's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "checkpoint/fault_list.h"

namespace tandem {

class Checkpoint;

enum class ModelFamily { kQwen3_8, kQwen3_8FlashNext, kDeepseekV4Flash, kUnknown };
enum class LayerType { kLinearAttention, kFullAttention };
enum class OutputGate { kSilu, kSigmoid };  // of the gated norm in the gated-delta-net layers

std::string_view family_name(ModelFamily family);  // "Qwen3.8", ...

// What can be said about any Hugging Face style checkpoint, supported or not.
struct ModelIdentity {
  ModelFamily family = ModelFamily::kUnknown;
  std::string architecture;            // "Qwen3_5ForCausalLM"; empty if not given
  std::string model_type;              // "qwen3_5_text"
  std::int64_t num_hidden_layers = 0;  // 0 if not given
};

// Family Qwen3.8 (dense hybrid of gated delta net and gated attention).
struct ModelConfig {
  ModelFamily family = ModelFamily::kQwen3_8;
  std::string architecture;
  bool nested_text_config = false;  // fields came from "text_config" (multimodal export)

  std::int64_t hidden_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::vector<LayerType> layer_types;  // [num_hidden_layers]
  std::int64_t intermediate_size = 0;
  double rms_norm_eps = 0;      // of every norm, q/k norm and l2norm
  std::int64_t vocab_size = 0;  // rows of the embedding; tokenizers use fewer ids
  bool tie_word_embeddings = false;
  std::int64_t max_position_embeddings = 0;

  // Full attention. q_proj has num_attention_heads * head_dim * 2 rows: query and gate per head.
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  bool attn_output_gate = true;
  double rope_theta = 0;
  double partial_rotary_factor = 1;
  std::int64_t rotary_dim = 0;  // head_dim * partial_rotary_factor, even

  // Gated delta net.
  std::int64_t linear_num_key_heads = 0;
  std::int64_t linear_num_value_heads = 0;  // a multiple of linear_num_key_heads
  std::int64_t linear_key_head_dim = 0;
  std::int64_t linear_value_head_dim = 0;
  std::int64_t linear_conv_kernel_dim = 0;
  OutputGate output_gate = OutputGate::kSilu;

  std::int64_t mtp_num_hidden_layers = 0;  // 0: no MTP head
  DType dtype = DType::kBF16;              // declared; each tensor's own dtype decides
  std::vector<std::int32_t> stop_ids;      // generation_config.json's eos ids, else config.json's

  std::int64_t linear_key_width() const { return linear_num_key_heads * linear_key_head_dim; }
  std::int64_t linear_value_width() const { return linear_num_value_heads * linear_value_head_dim; }
  std::int64_t linear_conv_channels() const {
    return 2 * linear_key_width() + linear_value_width();
  }
  std::int64_t num_layers_of(LayerType type) const;
};

// Throws Error{kConfiguration} if config.json is missing or no JSON object.
ModelIdentity read_model_identity(const std::filesystem::path& directory);

// Throws Error{kConfiguration} that lists every missing, mistyped or impossible field, or names the
// architecture if this build does not run it.
ModelConfig read_model_config(const std::filesystem::path& directory);
// The same for a family this build runs, adding to `faults` instead of throwing.
ModelConfig scan_model_config(const std::filesystem::path& directory, FaultList& faults);

// "model.language_model." or "model.": what stands before "layers.0. ..." in the tensor names.
// Throws Error{kConfiguration} if neither fits.
std::string text_tensor_prefix(const Checkpoint& checkpoint);

}  // namespace tandem
