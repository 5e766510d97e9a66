// Which format each weight has, from its siblings and shapes, against what is declared.
#include "checkpoint/quant_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/checkpoint/builder.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::OwnedTensor;
using testing::TempDir;

// A tensor of zeros: classification never looks at values.
OwnedTensor zeros(const std::string& name, DType dtype, const TensorShape& shape) {
  return {
      name, dtype, shape,
      std::vector<std::byte>(static_cast<std::size_t>(shape_numel(shape)) * dtype_bytes(dtype))};
}

struct Classified {
  std::map<std::string, WeightLayout> weights;  // by module
  CheckpointFormats formats;
  std::string faults;
};

Classified classify(const std::vector<OwnedTensor>& tensors, const std::string& quantization = "",
                    const std::string& hf_quant_config = "") {
  TempDir dir;
  testing::write_side_files(
      dir.path(), quantization.empty() ? "{}" : "{\"quantization_config\": " + quantization + "}");
  if (!hf_quant_config.empty()) testing::write_text(dir / "hf_quant_config.json", hf_quant_config);
  testing::write_tensors(dir / "model.safetensors", tensors);
  Classified result;
  FaultList faults;
  const auto declared = QuantDeclaration::read(dir.path(), faults);
  result.formats = classify_weights(Checkpoint::open(dir.path()), declared, faults);
  result.faults = testing::all_faults(faults);
  for (const auto& w : result.formats.weights) result.weights[w.module] = w;
  return result;
}

constexpr auto kE4M3 = DType::kF8E4M3;
constexpr auto kFp8Block128 = R"({"quant_method": "fp8", "fmt": "e4m3",
    "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "skip"]})";

TEST(QuantFormat, PlainTensors) {
  const auto c = classify({zeros("a.weight", DType::kBF16, {4, 3}), zeros("b", DType::kF32, {5}),
                           zeros("c.weight", DType::kF16, {2, 1, 4}), zeros("t", DType::kI64, {3}),
                           zeros("x.k_scale", DType::kF32, {})});
  EXPECT_EQ(c.faults, "");
  EXPECT_EQ(c.weights.at("a").format, WeightFormat::kBf16);
  EXPECT_EQ(c.weights.at("b").format, WeightFormat::kF32);
  EXPECT_EQ(c.weights.at("c").format, WeightFormat::kF16);
  EXPECT_EQ(c.weights.at("c").cols, 4);
  EXPECT_THAT(c.formats.others, ::testing::ElementsAre("t"));
  EXPECT_THAT(c.formats.kv_scales, ::testing::ElementsAre("x.k_scale"));
}

TEST(QuantFormat, BlockFp8WithPartialEdges) {
  const auto c = classify(
      {zeros("a.weight", kE4M3, {200, 300}), zeros("a.weight_scale_inv", DType::kBF16, {2, 3}),
       zeros("v4.weight", kE4M3, {256, 128}), zeros("v4.scale", DType::kF8E8M0, {2, 1}),
       zeros("opt.weight", kE4M3, {256, 384}), zeros("opt.weight_scale", DType::kF32, {2, 1, 3, 1}),
       zeros("one.weight", kE4M3, {128, 128}), zeros("one.weight_scale_inv", DType::kF32, {1, 1})},
      kFp8Block128);
  EXPECT_EQ(c.faults, "");
  for (const char* module : {"a", "v4", "opt", "one"}) {
    EXPECT_EQ(c.weights.at(module).format, WeightFormat::kFp8Block) << module;
    EXPECT_EQ(c.weights.at(module).block_rows, 128) << module;
    EXPECT_EQ(c.weights.at(module).block_cols, 128) << module;
  }
  EXPECT_EQ(c.weights.at("v4").scale, "v4.scale");
}

TEST(QuantFormat, BlockSizeFollowsTheShapeAndIsChecked) {
  const std::vector<OwnedTensor> tensors{zeros("a.weight", kE4M3, {64, 96}),
                                         zeros("a.weight_scale_inv", DType::kF32, {2, 3})};
  const auto c = classify(tensors);
  EXPECT_EQ(c.weights.at("a").block_rows, 32);
  EXPECT_THAT(classify(tensors, kFp8Block128).faults,
              HasSubstr("is stored as fp8 block 32x32 but declared fp8 block 128x128"));
}

TEST(QuantFormat, Fp8TensorAndChannel) {
  const auto c = classify(
      {zeros("t.weight", kE4M3, {6, 8}), zeros("t.weight_scale", DType::kF32, {}),
       zeros("t.input_scale", DType::kF32, {}), zeros("c.weight", kE4M3, {6, 8}),
       zeros("c.weight_scale", DType::kBF16, {6, 1}), zeros("d.weight", kE4M3, {6, 8}),
       zeros("d.weight_scale", DType::kF32, {6}), zeros("e", kE4M3, {3, 4, 8}),
       zeros("e_scale", DType::kF32, {3}), zeros("g.shard_0.weight", kE4M3, {4, 2}),
       zeros("g.shard_1.weight", kE4M3, {4, 2}), zeros("g.weight_scale", DType::kBF16, {1})});
  EXPECT_EQ(c.faults, "");
  EXPECT_EQ(c.weights.at("t").format, WeightFormat::kFp8Tensor);
  EXPECT_EQ(c.weights.at("t").input_scale, "t.input_scale");
  EXPECT_EQ(c.weights.at("c").format, WeightFormat::kFp8Channel);
  EXPECT_EQ(c.weights.at("d").format, WeightFormat::kFp8Channel);
  EXPECT_EQ(c.weights.at("e").format, WeightFormat::kFp8Tensor);
  EXPECT_EQ(c.weights.at("e").rows, 12);
  EXPECT_EQ(c.weights.at("e").block_rows, 4);
  EXPECT_EQ(c.weights.at("g.shard_1").scale, "g.weight_scale");
}

TEST(QuantFormat, Nvfp4InBothConventions) {
  const auto c = classify(
      {zeros("m.weight", DType::kU8, {5, 16}), zeros("m.weight_scale", kE4M3, {5, 2}),
       zeros("m.weight_scale_2", DType::kF32, {}), zeros("m.input_scale", DType::kF32, {}),
       zeros("k.weight_packed", DType::kU8, {5, 16}), zeros("k.weight_scale", kE4M3, {5, 2}),
       zeros("k.weight_global_scale", DType::kF32, {1}),
       zeros("k.input_global_scale", DType::kF32, {1})});
  EXPECT_EQ(c.faults, "");
  EXPECT_EQ(c.weights.at("m").format, WeightFormat::kNvfp4);
  EXPECT_EQ(c.weights.at("m").cols, 32);
  EXPECT_EQ(c.weights.at("m").global_scale_use, GlobalScale::kMultiply);
  EXPECT_EQ(c.weights.at("k").format, WeightFormat::kNvfp4);
  EXPECT_EQ(c.weights.at("k").global_scale_use, GlobalScale::kReciprocal);
  EXPECT_EQ(c.weights.at("k").weight, "k.weight_packed");
}

TEST(QuantFormat, Mxfp4InThreeSpellings) {
  const auto c = classify(
      {zeros("k.weight_packed", DType::kU8, {4, 32}), zeros("k.weight_scale", DType::kU8, {4, 2}),
       zeros("mlp.experts.gate_up_proj_blocks", DType::kU8, {3, 4, 2, 16}),
       zeros("mlp.experts.gate_up_proj_scales", DType::kU8, {3, 4, 2}),
       zeros("w1.weight", DType::kI8, {4, 32}), zeros("w1.scale", DType::kF8E8M0, {4, 2})});
  EXPECT_EQ(c.faults, "");
  for (const char* module : {"k", "mlp.experts.gate_up_proj", "w1"}) {
    EXPECT_EQ(c.weights.at(module).format, WeightFormat::kMxfp4) << module;
    EXPECT_EQ(c.weights.at(module).cols, 64) << module;
    EXPECT_EQ(c.weights.at(module).scale_dtype, DType::kF8E8M0) << module;
  }
  EXPECT_EQ(c.weights.at("mlp.experts.gate_up_proj").rows, 12);
}

TEST(QuantFormat, Int8) {
  const auto c = classify(
      {zeros("c.weight", DType::kI8, {4, 64}), zeros("c.weight_scale", DType::kF32, {4, 1}),
       zeros("g.weight", DType::kI8, {4, 64}), zeros("g.weight_scale", DType::kF16, {4, 2})});
  EXPECT_EQ(c.faults, "");
  EXPECT_EQ(c.weights.at("c").format, WeightFormat::kInt8Channel);
  EXPECT_EQ(c.weights.at("g").format, WeightFormat::kInt8Group);
  EXPECT_EQ(c.weights.at("g").block_cols, 32);
}

TEST(QuantFormat, ContradictionsNameTensorAndFile) {
  const auto faults = [](const std::vector<OwnedTensor>& tensors) {
    return classify(tensors).faults;
  };
  EXPECT_THAT(faults({zeros("a.weight", kE4M3, {4, 4})}),
              HasSubstr("model.safetensors: tensor \"a.weight\": F8_E4M3 weight without a scale"));
  EXPECT_THAT(
      faults({zeros("a.weight", DType::kBF16, {4, 4}), zeros("a.weight_scale", DType::kF32, {})}),
      HasSubstr("\"a.weight_scale\": is a scale, but \"a.weight\" is BF16"));
  EXPECT_THAT(faults({zeros("a.weight_scale_inv", DType::kBF16, {1, 1})}),
              HasSubstr("a scale without a weight"));
  EXPECT_THAT(faults({zeros("a.weight", kE4M3, {4, 4}), zeros("a.weight_scale", DType::kF32, {}),
                      zeros("a.weight_scale_inv", DType::kF32, {1, 1})}),
              HasSubstr("two scale tensors"));
  EXPECT_THAT(faults({zeros("a.weight", kE4M3, {256, 256}),
                      zeros("a.weight_scale_inv", DType::kF32, {2, 3})}),
              HasSubstr("F32 [2, 3] does not fit the weight \"a.weight\" [256, 256]"));
  EXPECT_THAT(faults({zeros("a.weight", kE4M3, {4, 4}), zeros("a.weight_scale", DType::kI32, {})}),
              HasSubstr("expected F32, BF16, F16 or F8_E8M0 scales"));
  EXPECT_THAT(
      faults({zeros("a.weight", DType::kU8, {4, 16}), zeros("a.weight_scale", kE4M3, {4, 1}),
              zeros("a.weight_scale_2", DType::kF32, {})}),
      HasSubstr("expected F8_E4M3 scales of shape [4, 2]"));
  EXPECT_THAT(
      faults({zeros("a.weight", DType::kU8, {4, 16}), zeros("a.weight_scale", kE4M3, {4, 2}),
              zeros("a.weight_scale_2", DType::kF32, {4})}),
      HasSubstr("F32 [4] as second-level scale"));
  EXPECT_THAT(
      faults({zeros("a.weight", DType::kF8E5M2, {4, 4}), zeros("a.weight_scale", DType::kF32, {})}),
      HasSubstr("packed as F8_E5M2 are not supported"));
  EXPECT_THAT(faults({zeros("a.weight_packed", DType::kI32, {4, 4}),
                      zeros("a.weight_scale", DType::kBF16, {4, 1})}),
              HasSubstr("packed as I32 are not supported"));
  EXPECT_THAT(
      faults({zeros("a.weight", DType::kI8, {4, 8}), zeros("a.weight_scale", DType::kF32, {3})}),
      HasSubstr("one floating-point scale a row"));
  EXPECT_THAT(
      faults({zeros("a.weight", DType::kU8, {4, 16}), zeros("a.weight_scale", kE4M3, {4, 2}),
              zeros("a.weight_scale_2", DType::kF32, {}),
              zeros("a.pre_quant_scale", DType::kBF16, {32})}),
      HasSubstr("comes with \"a.pre_quant_scale\""));
}

const std::vector<OwnedTensor> kTensorFp8{zeros("m.a.weight", kE4M3, {4, 4}),
                                          zeros("m.a.weight_scale", DType::kF32, {})};

TEST(QuantFormat, TheDeclarationHasToAgree) {
  const auto modelopt = [](const std::string& rest) {
    return R"({"quant_method": "modelopt", )" + rest + "}";
  };
  EXPECT_EQ(classify(kTensorFp8, modelopt(R"("quant_algo": "FP8")")).faults, "");
  EXPECT_THAT(classify(kTensorFp8, modelopt(R"("quant_algo": "NVFP4")")).faults,
              HasSubstr("\"m.a.weight\": is stored as fp8 tensor but declared nvfp4"));
  EXPECT_THAT(classify(kTensorFp8, modelopt(R"("quant_algo": "FP8", "ignore": ["m.*"])")).faults,
              HasSubstr("but declared not quantized"));
  const std::string mixed = R"("quant_algo": "MIXED_PRECISION", "quantized_layers": )";
  EXPECT_EQ(classify(kTensorFp8, modelopt(mixed + R"({"m.a": {"quant_algo": "FP8"}})")).faults, "");
  EXPECT_EQ(classify(kTensorFp8, modelopt(mixed + R"({"m": {"quant_algo": "FP8"}})")).faults, "");
  const auto unlisted = classify(kTensorFp8, modelopt(mixed + "{}"));
  EXPECT_EQ(unlisted.faults, "");
  EXPECT_THAT(unlisted.formats.notices, ::testing::ElementsAre(HasSubstr("not declared")));
  EXPECT_THAT(classify({zeros("m.a.weight", DType::kBF16, {4, 4})},
                       modelopt(mixed + R"({"m.a": {"quant_algo": "FP8"}})"))
                  .faults,
              HasSubstr("is stored as bf16 but declared fp8 tensor"));
  // The same in the other file.
  EXPECT_THAT(classify(kTensorFp8, "",
                       R"({"quantization": {"quant_algo": "NVFP4", "exclude_modules": []}})")
                  .faults,
              HasSubstr("declared nvfp4"));
}

TEST(QuantFormat, KnownWrongDeclarationsAreTolerated) {
  // Plain tensors that an incomplete exclusion list leaves out; a drafter that the list excludes.
  const auto c =
      classify({zeros("fc.weight", DType::kBF16, {4, 4}), zeros("mtp.a.weight", kE4M3, {4, 4}),
                zeros("mtp.a.weight_scale", DType::kF32, {})},
               R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["mtp*"]})");
  EXPECT_EQ(c.faults, "");
  EXPECT_EQ(c.formats.notices.size(), 1u);
  // FP4 experts under a declaration of FP8.
  const auto d = classify({zeros("layers.0.ffn.experts.0.w1.weight", DType::kI8, {4, 32}),
                           zeros("layers.0.ffn.experts.0.w1.scale", DType::kF8E8M0, {4, 2})},
                          kFp8Block128);
  EXPECT_EQ(d.faults, "");
  EXPECT_EQ(d.formats.notices.size(), 1u);
}

TEST(QuantFormat, CompressedTensorsGroups) {
  const std::string config = R"({"quant_method": "compressed-tensors", "format": "mixed-precision",
      "config_groups": {
        "g0": {"targets": ["re:.*mlp"], "weights": {"num_bits": 4, "type": "float",
               "strategy": "tensor_group", "group_size": 16}},
        "g1": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float",
               "strategy": "channel"}}},
      "ignore": ["lm_head", "re:.*visual.*"]})";
  const std::vector<OwnedTensor> tensors{zeros("l.mlp.up.weight_packed", DType::kU8, {4, 16}),
                                         zeros("l.mlp.up.weight_scale", kE4M3, {4, 2}),
                                         zeros("l.mlp.up.weight_global_scale", DType::kF32, {1}),
                                         zeros("l.q.weight", kE4M3, {4, 4}),
                                         zeros("l.q.weight_scale", DType::kBF16, {4, 1}),
                                         zeros("lm_head.weight", DType::kBF16, {4, 4})};
  const auto c = classify(tensors, config);
  EXPECT_EQ(c.faults, "");
  EXPECT_THAT(c.formats.notices, IsEmpty());
  EXPECT_THAT(classify({zeros("l.mlp.up.weight", kE4M3, {4, 4}),
                        zeros("l.mlp.up.weight_scale", DType::kBF16, {4, 1})},
                       config)
                  .faults,
              HasSubstr("is stored as fp8 channel but declared nvfp4"));
}

TEST(QuantFormat, UnsupportedDeclarationsAreNamed) {
  const auto faults = [](const std::string& q) { return classify(kTensorFp8, q).faults; };
  EXPECT_THAT(faults(R"({"quant_method": "gptq"})"),
              HasSubstr("quant_method \"gptq\" is not supp"));
  EXPECT_THAT(faults(R"({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"})"),
              HasSubstr("quant_algo \"NVFP4_AWQ\""));
  EXPECT_THAT(faults(R"({"quant_method": "fp8", "fmt": "e5m2"})"), HasSubstr("fmt \"e5m2\""));
  EXPECT_THAT(faults(R"({"quant_method": "compressed-tensors", "config_groups": {"g": {
                  "targets": ["Linear"], "weights": {"num_bits": 4, "type": "int",
                  "strategy": "group", "group_size": 128}}}})"),
              HasSubstr("weights of 4 bits, type \"int\""));
  EXPECT_THAT(faults(R"({"quant_method": "compressed-tensors", "ignore": ["re:("],
                         "config_groups": {}})"),
              HasSubstr("no usable regular expression"));
}

}  // namespace
}  // namespace tandem
