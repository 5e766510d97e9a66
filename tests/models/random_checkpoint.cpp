#include "tests/models/random_checkpoint.h"

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "tests/support/test_data.h"

namespace tandem::testing {

using json = nlohmann::json;

namespace {

// binary32 to binary16, nearest, ties to even; what is below the normal range becomes zero.
std::uint16_t to_f16(float x) {
  if (std::abs(x) < 0x1p-14f) return 0;
  int exponent = 0;
  const float mantissa = std::frexp(x, &exponent);  // in [0.5, 1)
  const float rounded = std::ldexp(std::nearbyint(std::ldexp(mantissa, 11)), exponent - 11);
  TANDEM_CHECK(std::abs(rounded) < 65504.0f, "{} in half precision", x);
  const auto bits = std::bit_cast<std::uint32_t>(rounded);
  return static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | ((bits >> 13 & 0x3ffffu) - 0x1c000u));
}

std::vector<char> encode(DType dtype, const std::vector<float>& values) {
  std::vector<char> out(values.size() * dtype_bytes(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(&out[4 * i], &values[i], 4);
      continue;
    }
    const std::uint16_t bits = dtype == DType::kBF16 ? to_bf16(values[i]).bits : to_f16(values[i]);
    std::memcpy(&out[2 * i], &bits, 2);
  }
  return out;
}

float rounded_to(DType dtype, float x) {
  if (dtype == DType::kBF16) return to_float(to_bf16(x));
  return dtype == DType::kF16 ? f16_to_float(to_f16(x)) : x;
}

std::uint64_t name_seed(std::uint64_t seed, const std::string& name) {
  for (const char c : name) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return seed;
}

}  // namespace

const std::vector<ModelShape>& model_shapes() {
  static const std::vector<ModelShape> shapes = {
      {.name = "one_linear_layer_odd_hidden",
       .layers = "L",
       .hidden = 72,
       .intermediate = 104,
       .linear_k_heads = 2,
       .linear_v_heads = 2,
       .k_dim = 32,
       .v_dim = 64,
       .conv_kernel = 2,
       .max_ranks = 2},
      {.name = "one_attention_layer_without_mtp",
       .layers = "F",
       .hidden = 72,
       .mtp_head = false,
       .num_heads = 2,
       .num_kv_heads = 2,
       .rotary_factor = 1.0,
       .max_ranks = 2},
      {.name = "all_linear_tied_head",
       .layers = "LLL",
       .hidden = 64,
       .vocab = 4099,
       .tied_head = true,
       .linear_k_heads = 4,
       .linear_v_heads = 4,
       .k_dim = 64,
       .v_dim = 32,
       .conv_kernel = 3,
       .max_ranks = 4},
      {.name = "all_attention_few_kv_heads_f32",
       .layers = "FFF",
       .hidden = 200,
       .vocab = 4099,
       .num_heads = 8,
       .num_kv_heads = 1,
       .head_dim = 64,
       .rotary_factor = 0.5,
       .stored = DType::kF32,
       .max_ranks = 4},
      {.name = "alternating_wide_heads_two_files",
       .layers = "LFLFL",
       .hidden = 80,
       .num_heads = 4,
       .num_kv_heads = 2,
       .head_dim = 256,
       .k_dim = 128,
       .v_dim = 64,
       .num_files = 2,
       .max_ranks = 4},
      {.name = "attention_first_f16",
       .layers = "FLL",
       .hidden = 96,
       .vocab = 4101,
       .num_heads = 4,
       .num_kv_heads = 4,
       .head_dim = 128,
       .rotary_factor = 0.5,
       .stored = DType::kF16,
       .max_ranks = 4},
      {.name = "nested_export_sigmoid_gate",
       .layers = "LLLF",
       .hidden = 128,
       .intermediate = 96,
       .vocab = 4099,
       .sigmoid_gate = true,
       .num_files = 2,
       .style = ExportStyle::kNested,
       .max_ranks = 4},
      {.name = "three_heads_divide_by_nothing",
       .layers = "LF",
       .hidden = 40,
       .intermediate = 75,
       .num_heads = 3,
       .num_kv_heads = 3,
       .rotary_factor = 1.0,
       .linear_k_heads = 3,
       .linear_v_heads = 9,
       .k_dim = 16,
       .v_dim = 48,
       .max_ranks = 1},
  };
  return shapes;
}

RandomCheckpoint::RandomCheckpoint(ModelShape shape, std::uint64_t seed)
    : shape_(std::move(shape)) {
  const ModelShape& s = shape_;
  const auto matrix = [&](const std::string& name, TensorShape dims) {
    tensors_[name] = {.dtype = s.stored, .shape = std::move(dims), .values = {}};
  };
  matrix("embed_tokens.weight", {s.vocab, s.hidden});
  matrix("norm.weight", {s.hidden});
  if (!s.tied_head) matrix("lm_head.weight", {s.vocab, s.hidden});
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    add_decoder_layer("layers." + std::to_string(i) + ".", s.layers[i]);
  }
  if (s.mtp_head) {
    matrix("mtp.fc.weight", {s.hidden, 2 * s.hidden});
    for (const char* norm : {"pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"}) {
      matrix("mtp." + std::string(norm) + ".weight", {s.hidden});
    }
    add_decoder_layer("mtp.layers.0.", 'F');
  }

  for (auto& [name, tensor] : tensors_) {
    const auto count = static_cast<std::size_t>(shape_numel(tensor.shape));
    std::mt19937_64 generator(name_seed(seed, name));
    std::normal_distribution<float> normal;
    // Matrices keep the variance of what they multiply, so that logits are of order 1; decays
    // exp(g) spread from nearly 0 to nearly 1.
    float scale = 0.2f, offset = 0.0f;
    if (tensor.shape.size() == 2) scale = 1 / std::sqrt(static_cast<float>(tensor.shape[1]));
    if (name.ends_with("conv1d.weight")) scale = 0.6f;
    if (name.ends_with("A_log")) scale = 0.7f;
    if (name.ends_with("dt_bias")) scale = 1.0f, offset = -2.0f;
    if (name.ends_with("linear_attn.norm.weight")) offset = 1.0f;
    tensor.values.resize(count);
    for (float& x : tensor.values) x = rounded_to(tensor.dtype, offset + scale * normal(generator));
  }
}

void RandomCheckpoint::add_decoder_layer(const std::string& prefix, char kind) {
  const ModelShape& s = shape_;
  const auto add = [&](const std::string& name, TensorShape dims) {
    tensors_[prefix + name] = {.dtype = s.stored, .shape = std::move(dims), .values = {}};
  };
  add("input_layernorm.weight", {s.hidden});
  add("post_attention_layernorm.weight", {s.hidden});
  add("mlp.gate_proj.weight", {s.intermediate, s.hidden});
  add("mlp.up_proj.weight", {s.intermediate, s.hidden});
  add("mlp.down_proj.weight", {s.hidden, s.intermediate});
  if (kind == 'F') {
    add("self_attn.q_proj.weight", {s.num_heads * 2 * s.head_dim, s.hidden});
    add("self_attn.k_proj.weight", {s.num_kv_heads * s.head_dim, s.hidden});
    add("self_attn.v_proj.weight", {s.num_kv_heads * s.head_dim, s.hidden});
    add("self_attn.o_proj.weight", {s.hidden, s.num_heads * s.head_dim});
    add("self_attn.q_norm.weight", {s.head_dim});
    add("self_attn.k_norm.weight", {s.head_dim});
    return;
  }
  TANDEM_CHECK(kind == 'L', "layer kind {}", kind);
  add("linear_attn.in_proj_qkv.weight", {s.channels(), s.hidden});
  add("linear_attn.in_proj_z.weight", {s.value_width(), s.hidden});
  add("linear_attn.in_proj_b.weight", {s.linear_v_heads, s.hidden});
  add("linear_attn.in_proj_a.weight", {s.linear_v_heads, s.hidden});
  add("linear_attn.conv1d.weight", {s.channels(), 1, s.conv_kernel});
  add("linear_attn.A_log", {s.linear_v_heads});
  add("linear_attn.dt_bias", {s.linear_v_heads});
  add("linear_attn.norm.weight", {s.v_dim});
  add("linear_attn.out_proj.weight", {s.hidden, s.value_width()});
  if (s.stored == DType::kBF16) {
    tensors_[prefix + "linear_attn.A_log"].dtype = DType::kF32;
    tensors_[prefix + "linear_attn.norm.weight"].dtype = DType::kF32;
  }
}

const std::vector<float>& RandomCheckpoint::values(const std::string& name) const {
  const auto it = tensors_.find(name);
  TANDEM_CHECK(it != tensors_.end(), "no random tensor {}", name);
  return it->second.values;
}

std::string RandomCheckpoint::stored_name(const std::string& name) const {
  if (name.starts_with("mtp.") || name == "lm_head.weight") return name;
  return (shape_.style == ExportStyle::kNested ? "model.language_model." : "model.") + name;
}

void RandomCheckpoint::write(const std::filesystem::path& directory) const {
  namespace fs = std::filesystem;
  fs::create_directories(directory);
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    fs::copy_file(test_data("tiny-qwen3.8") / file, directory / file);
  }
  write_config(directory);

  std::map<std::string, Tensor> all;
  for (const auto& [name, tensor] : tensors_) all[stored_name(name)] = tensor;
  if (shape_.style == ExportStyle::kNested) {
    all["model.visual.patch_embed.proj.weight"] = {DType::kBF16, {8, 4}, std::vector<float>(32)};
  }
  std::vector<std::vector<char>> bytes;
  std::vector<std::vector<TensorToWrite>> files(static_cast<std::size_t>(shape_.num_files));
  json index{{"metadata", {{"total_size", 0}}}, {"weight_map", json::object()}};
  const auto file_name = [&](std::size_t i) {
    return shape_.num_files == 1
               ? "model.safetensors"
               : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shape_.num_files);
  };
  std::size_t total = 0;
  for (const auto& [name, tensor] : all) {
    const std::size_t file = bytes.size() % files.size();
    bytes.push_back(encode(tensor.dtype, tensor.values));
    total += bytes.back().size();
    files[file].push_back({name, tensor.dtype, tensor.shape, bytes.back().data()});
    index["weight_map"][name] = file_name(file);
  }
  index["metadata"]["total_size"] = total;
  for (std::size_t i = 0; i < files.size(); ++i) {
    write_safetensors(directory / file_name(i), files[i], {{"format", "pt"}});
  }
  if (files.size() > 1) write_text(directory / "model.safetensors.index.json", index.dump());
}

void RandomCheckpoint::write_config(const std::filesystem::path& directory) const {
  const ModelShape& s = shape_;
  json types = json::array();
  for (const char kind : s.layers) {
    types.push_back(kind == 'F' ? "full_attention" : "linear_attention");
  }
  const char* dtype = s.stored == DType::kBF16  ? "bfloat16"
                      : s.stored == DType::kF16 ? "float16"
                                                : "float32";
  json text{{"model_type", "qwen3_5_text"},
            {"hidden_size", s.hidden},
            {"num_hidden_layers", s.layers.size()},
            {"layer_types", types},
            {"intermediate_size", s.intermediate},
            {"hidden_act", "silu"},
            {"rms_norm_eps", 1e-6},
            {"vocab_size", s.vocab},
            {"tie_word_embeddings", s.tied_head},
            {"max_position_embeddings", 4096},
            {"num_attention_heads", s.num_heads},
            {"num_key_value_heads", s.num_kv_heads},
            {"head_dim", s.head_dim},
            {"attn_output_gate", true},
            {"rope_parameters",
             {{"rope_type", "default"},
              {"rope_theta", 10000000},
              {"partial_rotary_factor", s.rotary_factor}}},
            {"linear_num_key_heads", s.linear_k_heads},
            {"linear_num_value_heads", s.linear_v_heads},
            {"linear_key_head_dim", s.k_dim},
            {"linear_value_head_dim", s.v_dim},
            {"linear_conv_kernel_dim", s.conv_kernel},
            {"output_gate_type", s.sigmoid_gate ? "sigmoid" : "swish"},
            {"mamba_ssm_dtype", "float32"},
            {"mtp_num_hidden_layers", s.mtp_head ? 1 : 0},
            {"dtype", dtype}};
  json root;
  if (s.style == ExportStyle::kNested) {
    root = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
            {"model_type", "qwen3_5"},
            {"text_config", text},
            {"vision_config", {{"depth", 1}}}};
  } else {
    root = text;
    root["architectures"] = {"Qwen3_5ForCausalLM"};
  }
  write_text(directory / "config.json", root.dump(2));
}

}  // namespace tandem::testing
