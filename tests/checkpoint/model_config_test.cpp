// config.json of the fixture, of published layouts, and with one fault each.
#include "checkpoint/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "tests/checkpoint/builder.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TempDir;

std::string fixture_config() {
  return testing::read_text(testing::test_data("tiny-qwen3.8") / "config.json");
}

// `text` with one occurrence of `from` replaced; the test is wrong if there is none.
std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  TANDEM_CHECK(at != std::string::npos, "{}", from);
  return text.replace(at, from.size(), to);
}

ModelConfig parse(const std::string& config, const std::string& generation = "") {
  TempDir dir;
  testing::write_text(dir / "config.json", config);
  if (!generation.empty()) testing::write_text(dir / "generation_config.json", generation);
  return read_model_config(dir.path());
}

TEST(ModelConfig, ReadsTheFixture) {
  const auto c = read_model_config(testing::test_data("tiny-qwen3.8"));
  EXPECT_EQ(c.family, ModelFamily::kQwen3_8);
  EXPECT_EQ(c.architecture, "Qwen3_5ForCausalLM");
  EXPECT_FALSE(c.nested_text_config);
  EXPECT_EQ(c.hidden_size, 128);
  EXPECT_EQ(c.intermediate_size, 384);
  EXPECT_THAT(c.layer_types, ElementsAre(LayerType::kLinearAttention, LayerType::kLinearAttention,
                                         LayerType::kLinearAttention, LayerType::kFullAttention));
  EXPECT_EQ(c.num_layers_of(LayerType::kLinearAttention), 3);
  EXPECT_EQ(c.num_attention_heads, 4);
  EXPECT_EQ(c.num_key_value_heads, 2);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.rotary_dim, 64);
  EXPECT_EQ(c.rope_theta, 1e7);
  EXPECT_EQ(c.linear_conv_channels(), 2560);
  EXPECT_EQ(c.output_gate, OutputGate::kSilu);
  EXPECT_EQ(c.mtp_num_hidden_layers, 1);
  EXPECT_EQ(c.rms_norm_eps, 1e-6);
  EXPECT_EQ(c.vocab_size, 4096);
  EXPECT_EQ(c.dtype, DType::kBF16);
  EXPECT_THAT(c.stop_ids, ElementsAre(4093, 4091));
}

TEST(ModelConfig, ReadsANestedTextConfig) {
  const auto c = parse(R"({"model_type": "qwen3_5", "tie_word_embeddings": true,
      "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": )" +
                       fixture_config() + "}");
  EXPECT_TRUE(c.nested_text_config);
  EXPECT_EQ(c.hidden_size, 128);
  EXPECT_FALSE(c.tie_word_embeddings);  // the text_config's own value wins
  EXPECT_THAT(c.stop_ids, ElementsAre(4091));
}

TEST(ModelConfig, StopIdsComeFromTheGenerationConfig) {
  EXPECT_THAT(parse(fixture_config(), R"({"eos_token_id": 7})").stop_ids, ElementsAre(7));
  EXPECT_THAT(parse(fixture_config(), R"({"eos_token_id": [9, 7, 9]})").stop_ids,
              ElementsAre(9, 7));
  EXPECT_THAT(parse(fixture_config(), R"({"temperature": 1})").stop_ids, ElementsAre(4091));
  EXPECT_THAT(error_of([] { parse(fixture_config(), R"({"eos_token_id": 4096})"); }),
              HasSubstr("eos_token_id 4096; expected ids below vocab_size 4096"));
  EXPECT_THAT(
      error_of([] {
        parse(replaced(fixture_config(), "\"eos_token_id\": 4091", "\"eos_token_id\": null"));
      }),
      HasSubstr("has an eos_token_id"));
}

TEST(ModelConfig, DerivesLayerTypesFromTheInterval) {
  const auto c = parse(replaced(fixture_config(), "\"layer_types\"", "\"old_layer_types\""));
  EXPECT_THAT(c.layer_types, ElementsAre(LayerType::kLinearAttention, LayerType::kLinearAttention,
                                         LayerType::kLinearAttention, LayerType::kFullAttention));
}

TEST(ModelConfig, SwishMeansSilu) {
  const std::string gate = "\"attn_output_gate\": true, \"output_gate_type\": ";
  const std::string from = "\"attn_output_gate\": true";
  EXPECT_EQ(parse(replaced(fixture_config(), from, gate + "\"swish\"")).output_gate,
            OutputGate::kSilu);
  EXPECT_EQ(parse(replaced(fixture_config(), from, gate + "\"sigmoid\"")).output_gate,
            OutputGate::kSigmoid);
  EXPECT_THAT(error_of([&] { parse(replaced(fixture_config(), from, gate + "\"relu\"")); }),
              HasSubstr("output_gate_type \"relu\""));
}

TEST(ModelConfig, RefusesWhatCannotBeComputed) {
  const std::vector<std::vector<std::string>> cases{
      {"\"hidden_size\": 128", "\"hidden_size\": 0",
       "hidden_size is 0; expected an integer from 1"},
      {"\"hidden_size\": 128", "\"hidden_size\": \"128\"", "hidden_size is \"128\""},
      {"\"hidden_size\": 128", "\"hidden_size\": 1e3", "hidden_size is 1000.0"},
      {"\"hidden_size\": 128", "\"hidden_size\": 18446744073709551615", "hidden_size is 184467"},
      {"\"hidden_size\"", "\"hidden\"", "hidden_size is missing"},
      {"\"num_attention_heads\": 4", "\"num_attention_heads\": 3", "no multiple of num_key_value"},
      {"\"linear_num_value_heads\": 12", "\"linear_num_value_heads\": 10",
       "no multiple of linear_num"},
      {"\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5", "layer_types must list"},
      {"\"full_attention\"", "\"sliding_attention\"", "layer_types[3] is \"sliding_attention\""},
      {"\"head_dim\": 256", "\"head_dim\": 255", "head_dim 255 is odd"},
      {"\"partial_rotary_factor\": 0.25,\n    \"rope",
       "\"partial_rotary_factor\": 1.5,\n    \"rope", "partial_rotary_factor is 1.5"},
      {"\"partial_rotary_factor\": 0.25,\n    \"rope",
       "\"partial_rotary_factor\": 0.004,\n    \"rope", "rotary dimensions"},
      {"\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"",
       "rope_type \"yarn\" is not supported"},
      {"\"attention_bias\": false", "\"attention_bias\": true", "attention_bias true"},
      {"\"attn_output_gate\": true", "\"attn_output_gate\": false", "attn_output_gate false"},
      {"\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "hidden_act \"gelu\""},
      {"\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 0", "rms_norm_eps is 0"},
      {"\"mamba_ssm_dtype\": \"float32\"", "\"mamba_ssm_dtype\": \"bfloat16\"", "mamba_ssm_dtype"},
      {"\"mtp_num_hidden_layers\": 1", "\"mtp_num_hidden_layers\": 2",
       "mtp_num_hidden_layers is 2"},
      {"\"dtype\": \"bfloat16\"", "\"dtype\": \"int4\"", "dtype \"int4\""},
      {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": \"no\"",
       "expected true or false"}};
  for (const auto& c : cases) {
    EXPECT_THAT(error_of([&] { parse(replaced(fixture_config(), c[0], c[1])); }), HasSubstr(c[2]))
        << c[1];
  }
}

TEST(ModelConfig, ListsAllFaultsTogether) {
  auto text = replaced(fixture_config(), "\"hidden_size\": 128", "\"hidden_size\": -1");
  text = replaced(text, "\"attention_bias\": false", "\"attention_bias\": true");
  text = replaced(text, "\"rope_type\": \"default\"", "\"rope_type\": \"linear\"");
  EXPECT_THAT(error_of([&] { parse(text); }), HasSubstr("3 faults"));
}

TEST(ModelConfig, NamesArchitecturesItDoesNotRun) {
  EXPECT_THAT(
      error_of([] {
        parse(R"({"model_type": "qwen4_exp",
                                      "architectures": ["Qwen4ExpForConditionalGeneration"]})");
      }),
      HasSubstr("Qwen4ExpForConditionalGeneration (Qwen3.8-Flash-Next) is not supported yet"));
  EXPECT_THAT(error_of([] { parse(R"({"model_type": "deepseek_v4"})"); }),
              HasSubstr("deepseek_v4 (DeepSeek-V4-Flash) is not supported yet"));
  EXPECT_THAT(error_of([] { parse(R"({"model_type": "llama"})"); }), HasSubstr("is unknown"));
  EXPECT_THAT(error_of([] { parse("{}"); }), HasSubstr("is unknown"));
  EXPECT_THAT(error_of([] { parse("[]"); }), HasSubstr("is no JSON object"));
  EXPECT_THAT(error_of([] { parse("{\"model_type\": \"a\", \"model_type\": \"b\"}"); }),
              HasSubstr("occurs twice"));
}

TEST(ModelConfig, FindsTheTensorPrefix) {
  EXPECT_EQ(text_tensor_prefix(Checkpoint::open(testing::test_data("tiny-qwen3.8"))), "model.");
  TempDir dir;
  testing::write_side_files(dir.path());
  const auto write = [&](const char* name) {
    testing::write_tensors(dir / "model.safetensors", {testing::counting_bf16(name, {2, 2})});
    return Checkpoint::open(dir.path());
  };
  EXPECT_EQ(text_tensor_prefix(write("model.language_model.embed_tokens.weight")),
            "model.language_model.");
  EXPECT_THAT(error_of([&] { text_tensor_prefix(write("wte.weight")); }),
              HasSubstr("no embedding tensor"));
}

}  // namespace
}  // namespace tandem
