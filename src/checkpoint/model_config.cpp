#include "checkpoint/model_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/fault_list.h"
#include "checkpoint/json_text.h"
#include "checkpoint/safetensors.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Far above every published model; keeps products of fields inside 64 bits.
constexpr std::int64_t kMaxDim = std::int64_t{1} << 28;
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxTokenId = std::numeric_limits<std::int32_t>::max();

json read_object(const fs::path& path, FaultList& faults) {
  const std::string text = read_json_text(path, faults);
  if (text.empty()) return json::object();
  json root = json::parse(text);
  if (root.is_object()) return root;
  faults.add("{}: is no JSON object", path.filename().string());
  return json::object();
}

json read_config_json(const fs::path& directory) {
  FaultList faults;
  json root = read_object(directory / "config.json", faults);
  faults.throw_if_any(directory.string());
  return root;
}

std::string text_or_empty(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

bool has_text_config(const json& root) {
  const auto it = root.find("text_config");
  return it != root.end() && it->is_object();
}

std::string first_architecture(const json& root) {
  const auto it = root.find("architectures");
  if (it == root.end() || !it->is_array() || it->empty() || !it->front().is_string()) return {};
  return it->front().get<std::string>();
}

ModelFamily family_of(const std::string& model_type, const std::string& architecture) {
  const auto either = [&](std::string_view type, std::string_view arch) {
    return model_type == type || model_type == std::string(type) + "_text" ||
           (model_type.empty() && architecture.starts_with(arch));
  };
  if (either("qwen3_5", "Qwen3_5For")) return ModelFamily::kQwen3_8;
  if (either("qwen4_exp", "Qwen4ExpFor")) return ModelFamily::kQwen3_8FlashNext;
  if (either("deepseek_v4", "DeepseekV4For")) return ModelFamily::kDeepseekV4Flash;
  return ModelFamily::kUnknown;
}

// Typed access to one object of config.json; every complaint carries the key.
class Fields {
 public:
  Fields(const json& object, FaultList& faults) : object_(object), faults_(faults) {}

  const json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  std::int64_t integer(const char* key, std::int64_t min, std::int64_t max,
                       std::optional<std::int64_t> fallback = std::nullopt) const {
    const json* value = find(key);
    if (value == nullptr && fallback) return *fallback;
    if (value != nullptr && value->is_number_integer() && fits(*value, min, max)) {
      return value->get<std::int64_t>();
    }
    complain(key, value, fmt::format("an integer from {} to {}", min, max));
    return min;
  }
  double number(const char* key, double above, double max,
                std::optional<double> fallback = std::nullopt) const {
    const json* value = find(key);
    if (value == nullptr && fallback) return *fallback;
    if (value != nullptr && value->is_number()) {
      const double x = value->get<double>();
      if (std::isfinite(x) && x > above && x <= max) return x;
    }
    complain(key, value, fmt::format("a number above {}, at most {}", above, max));
    return max;
  }
  bool boolean(const char* key, bool fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (value->is_boolean()) return value->get<bool>();
    complain(key, value, "true or false");
    return fallback;
  }
  std::string text(const char* key, const std::string& fallback) const {
    const json* value = find(key);
    if (value == nullptr) return fallback;
    if (value->is_string()) return value->get<std::string>();
    complain(key, value, "text");
    return fallback;
  }
  void complain(const char* key, const json* value, const std::string& expected) const {
    faults_.add("config.json: {} {}; expected {}", key,
                value == nullptr ? "is missing" : "is " + value->dump(), expected);
  }

 private:
  static bool fits(const json& value, std::int64_t min, std::int64_t max) {
    if (value.is_number_unsigned() &&
        value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxTokenId)) {
      return false;
    }
    const auto n = value.get<std::int64_t>();
    return n >= min && n <= max;
  }

  const json& object_;
  FaultList& faults_;
};

std::vector<LayerType> read_layer_types(const Fields& fields, std::int64_t num_layers,
                                        FaultList& faults) {
  std::vector<LayerType> types;
  const json* list = fields.find("layer_types");
  if (list == nullptr) {
    // Older exports: every interval-th layer is full attention.
    const auto interval = fields.integer("full_attention_interval", 1, kMaxLayers);
    for (std::int64_t i = 0; i < num_layers; ++i) {
      types.push_back((i + 1) % interval == 0 ? LayerType::kFullAttention
                                              : LayerType::kLinearAttention);
    }
    return types;
  }
  if (!list->is_array() || list->size() != static_cast<std::size_t>(num_layers)) {
    faults.add("config.json: layer_types must list num_hidden_layers = {} layers", num_layers);
    return types;
  }
  for (const auto& entry : *list) {
    if (entry == "linear_attention") {
      types.push_back(LayerType::kLinearAttention);
    } else if (entry == "full_attention") {
      types.push_back(LayerType::kFullAttention);
    } else {
      faults.add("config.json: layer_types[{}] is {}; expected linear_attention or full_attention",
                 types.size(), entry.dump());
      return types;
    }
  }
  return types;
}

void read_rope(const Fields& fields, const json& text, ModelConfig& config, FaultList& faults) {
  const json empty = json::object();
  const json* parameters = fields.find("rope_parameters");
  if (parameters == nullptr) parameters = fields.find("rope_scaling");
  if (parameters != nullptr && !parameters->is_object()) {
    fields.complain("rope_parameters", parameters, "an object");
    parameters = nullptr;
  }
  const Fields rope(parameters != nullptr ? *parameters : empty, faults);
  // Some exports keep theta and the factor at the top instead; inside rope_parameters they win.
  const Fields top(text, faults);
  config.rope_theta =
      (rope.find("rope_theta") != nullptr ? rope : top).number("rope_theta", 1, 1e12);
  config.partial_rotary_factor = (rope.find("partial_rotary_factor") != nullptr ? rope : top)
                                     .number("partial_rotary_factor", 0, 1, 1.0);
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (type != "default") {
    faults.add(
        "config.json: rope_type \"{}\" is not supported by this build; expected \"default\" "
        "(contexts beyond max_position_embeddings are not scaled)",
        type);
  }
  const double rotary = static_cast<double>(config.head_dim) * config.partial_rotary_factor;
  config.rotary_dim = std::llround(rotary);
  if (std::abs(rotary - static_cast<double>(config.rotary_dim)) > 1e-6 || config.rotary_dim < 2 ||
      config.rotary_dim % 2 != 0) {
    faults.add(
        "config.json: head_dim {} * partial_rotary_factor {} = {} rotary dimensions; "
        "expected an even number from 2 to head_dim",
        config.head_dim, config.partial_rotary_factor, rotary);
  }
}

void read_attention(const Fields& fields, ModelConfig& config, FaultList& faults) {
  config.num_attention_heads = fields.integer("num_attention_heads", 1, 65536);
  config.num_key_value_heads =
      fields.integer("num_key_value_heads", 1, 65536, config.num_attention_heads);
  config.head_dim = fields.integer("head_dim", 2, 65536);
  config.attn_output_gate = fields.boolean("attn_output_gate", true);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    faults.add("config.json: num_attention_heads {} is no multiple of num_key_value_heads {}",
               config.num_attention_heads, config.num_key_value_heads);
  }
  if (config.head_dim % 2 != 0) faults.add("config.json: head_dim {} is odd", config.head_dim);
  if (!config.attn_output_gate) {
    faults.add(
        "config.json: attn_output_gate false is not supported: attention of this family "
        "always has an output gate");
  }
  if (fields.boolean("attention_bias", false)) {
    faults.add(
        "config.json: attention_bias true is not supported: projections of this family have "
        "no bias");
  }
}

void read_linear_attention(const Fields& fields, ModelConfig& config, FaultList& faults) {
  config.linear_num_key_heads = fields.integer("linear_num_key_heads", 1, 65536);
  config.linear_num_value_heads = fields.integer("linear_num_value_heads", 1, 65536);
  config.linear_key_head_dim = fields.integer("linear_key_head_dim", 1, 65536);
  config.linear_value_head_dim = fields.integer("linear_value_head_dim", 1, 65536);
  config.linear_conv_kernel_dim = fields.integer("linear_conv_kernel_dim", 2, 64);
  if (config.linear_num_value_heads % config.linear_num_key_heads != 0) {
    faults.add("config.json: linear_num_value_heads {} is no multiple of linear_num_key_heads {}",
               config.linear_num_value_heads, config.linear_num_key_heads);
  }
  const std::string gate = fields.text("output_gate_type", "silu");
  if (gate == "sigmoid") {
    config.output_gate = OutputGate::kSigmoid;
  } else if (gate != "silu" && gate != "swish") {
    faults.add("config.json: output_gate_type \"{}\"; expected silu, swish or sigmoid", gate);
  }
  const std::string state = fields.text("mamba_ssm_dtype", "float32");
  if (state != "float32") {
    faults.add("config.json: mamba_ssm_dtype \"{}\"; recurrent states are kept in float32", state);
  }
}

DType read_dtype(const Fields& fields, FaultList& faults) {
  const std::string name = fields.text("dtype", fields.text("torch_dtype", "bfloat16"));
  if (name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  if (name == "float32") return DType::kF32;
  faults.add("config.json: dtype \"{}\"; expected bfloat16, float16 or float32", name);
  return DType::kBF16;
}

// eos_token_id: an id, a list of ids, or nothing.
std::vector<std::int32_t> read_eos_ids(const json& object, const char* file,
                                       std::int64_t vocab_size, FaultList& faults) {
  std::vector<std::int32_t> ids;
  const auto it = object.find("eos_token_id");
  if (it == object.end() || it->is_null()) return ids;
  const json list = it->is_array() ? *it : json::array({*it});
  for (const auto& id : list) {
    if (!id.is_number_unsigned() ||
        id.get<std::uint64_t>() >= static_cast<std::uint64_t>(vocab_size)) {
      faults.add("{}: eos_token_id {}; expected ids below vocab_size {}", file, id.dump(),
                 vocab_size);
      continue;
    }
    const auto value = id.get<std::int32_t>();
    if (std::find(ids.begin(), ids.end(), value) == ids.end()) ids.push_back(value);
  }
  return ids;
}

void read_stop_ids(const fs::path& directory, const json& root, const json& text,
                   ModelConfig& config, FaultList& faults) {
  // config.json alone names only one of the two ids that end an answer.
  const fs::path path = directory / "generation_config.json";
  std::error_code ignored;
  if (fs::exists(path, ignored)) {
    config.stop_ids = read_eos_ids(read_object(path, faults), "generation_config.json",
                                   config.vocab_size, faults);
  }
  for (const json* object : {&text, &root}) {
    if (!config.stop_ids.empty()) return;
    config.stop_ids = read_eos_ids(*object, "config.json", config.vocab_size, faults);
  }
  if (config.stop_ids.empty()) {
    faults.add("neither generation_config.json nor config.json has an eos_token_id");
  }
}

ModelIdentity identity_of(const json& root) {
  ModelIdentity identity;
  const json& text = has_text_config(root) ? root["text_config"] : root;
  identity.architecture = first_architecture(root);
  identity.model_type = text_or_empty(text, "model_type");
  if (identity.model_type.empty()) identity.model_type = text_or_empty(root, "model_type");
  identity.family = family_of(identity.model_type, identity.architecture);
  const auto layers = text.find("num_hidden_layers");
  if (layers != text.end() && layers->is_number_unsigned()) {
    identity.num_hidden_layers = static_cast<std::int64_t>(
        std::min<std::uint64_t>(layers->get<std::uint64_t>(), std::uint64_t{kMaxLayers}));
  }
  return identity;
}

void require_supported(const ModelIdentity& identity, const fs::path& directory) {
  if (identity.family == ModelFamily::kQwen3_8) return;
  const std::string name =
      identity.architecture.empty() ? identity.model_type : identity.architecture;
  const bool known = identity.family != ModelFamily::kUnknown;
  throw Error(
      ExitCode::kConfiguration,
      {.what = known ? fmt::format("architecture {} ({}) is not supported yet by this build", name,
                                   family_name(identity.family))
                     : fmt::format("architecture \"{}\" (model_type \"{}\") is unknown", name,
                                   identity.model_type),
       .where = (directory / "config.json").string(),
       .expected = "Qwen3_5ForCausalLM or Qwen3_5ForConditionalGeneration (Qwen3.8)",
       .remedy = {}});
}

}  // namespace

std::string_view family_name(ModelFamily family) {
  switch (family) {
    case ModelFamily::kQwen3_8:
      return "Qwen3.8";
    case ModelFamily::kQwen3_8FlashNext:
      return "Qwen3.8-Flash-Next";
    case ModelFamily::kDeepseekV4Flash:
      return "DeepSeek-V4-Flash";
    case ModelFamily::kUnknown:
      break;
  }
  return "unknown";
}

std::int64_t ModelConfig::num_layers_of(LayerType type) const {
  return std::count(layer_types.begin(), layer_types.end(), type);
}

ModelIdentity read_model_identity(const fs::path& directory) {
  return identity_of(read_config_json(directory));
}

ModelConfig read_model_config(const fs::path& directory) {
  require_supported(read_model_identity(directory), directory);
  FaultList faults;
  ModelConfig config = scan_model_config(directory, faults);
  faults.throw_if_any(directory.string());
  return config;
}

ModelConfig scan_model_config(const fs::path& directory, FaultList& faults) {
  const json root = read_config_json(directory);
  const ModelIdentity identity = identity_of(root);
  ModelConfig config;
  config.family = identity.family;
  config.architecture = identity.architecture;
  config.nested_text_config = has_text_config(root);
  const json& text = config.nested_text_config ? root["text_config"] : root;
  const Fields fields(text, faults);

  config.hidden_size = fields.integer("hidden_size", 1, kMaxDim);
  config.num_hidden_layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  config.layer_types = read_layer_types(fields, config.num_hidden_layers, faults);
  config.intermediate_size = fields.integer("intermediate_size", 1, kMaxDim);
  config.rms_norm_eps = fields.number("rms_norm_eps", 0, 1);
  config.vocab_size = fields.integer("vocab_size", 1, kMaxDim);
  config.max_position_embeddings = fields.integer("max_position_embeddings", 1, kMaxTokenId);
  config.tie_word_embeddings = fields.boolean(
      "tie_word_embeddings", Fields(root, faults).boolean("tie_word_embeddings", false));
  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu") {
    faults.add("config.json: hidden_act \"{}\" is not supported; expected silu", activation);
  }
  read_attention(fields, config, faults);
  read_linear_attention(fields, config, faults);
  read_rope(fields, text, config, faults);
  config.mtp_num_hidden_layers = fields.integer("mtp_num_hidden_layers", 0, 1, 0);
  if (fields.boolean("mtp_use_dedicated_embeddings", false)) {
    faults.add("config.json: mtp_use_dedicated_embeddings true is not supported");
  }
  config.dtype = read_dtype(fields, faults);
  read_stop_ids(directory, root, text, config, faults);
  return config;
}

std::string text_tensor_prefix(const Checkpoint& checkpoint) {
  for (const char* prefix : {"model.language_model.", "model."}) {
    if (checkpoint.find(std::string(prefix) + "embed_tokens.weight") != nullptr) return prefix;
  }
  throw Error(ExitCode::kConfiguration,
              {.what = "no embedding tensor found",
               .where = checkpoint.directory().string(),
               .expected = "model.embed_tokens.weight or model.language_model.embed_tokens.weight",
               .remedy = {}});
}

}  // namespace tandem
