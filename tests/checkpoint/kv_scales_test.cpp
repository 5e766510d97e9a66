// Which tensors are scales of a KV cache, what they may hold, and when they count as calibrated.
#include "checkpoint/kv_scales.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "checkpoint/loader.h"
#include "tests/checkpoint/builder.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::make_tensor;
using ::testing::Not;
using testing::OwnedTensor;
using testing::TempDir;

constexpr std::int64_t kHeads = 2;

OwnedTensor f32(const std::string& name, const std::vector<float>& values) {
  return make_tensor(name, DType::kF32, {static_cast<std::int64_t>(values.size())}, values);
}

OwnedTensor scalar(const std::string& name, float value) {
  return make_tensor<float>(name, DType::kF32, {}, {value});
}

class KvScalesTest : public ::testing::Test {
 protected:
  Checkpoint write(std::vector<OwnedTensor> tensors, const std::string& config = "{}") {
    tensors.push_back(testing::counting_bf16("w", {2, 2}));  // a checkpoint is never empty
    testing::write_side_files(dir_.path(), config);
    testing::write_tensors(dir_ / "model.safetensors", tensors);
    return Checkpoint::open(dir_.path());
  }
  std::vector<KvScales> read(const std::vector<OwnedTensor>& tensors,
                             UnitScales unit = UnitScales::kRefuse,
                             const std::string& config = "{}") {
    return read_kv_scales(write(tensors, config), {"l3.self_attn.", "l7.self_attn."}, kHeads, unit);
  }
  std::string fault(const std::vector<OwnedTensor>& tensors, UnitScales unit = UnitScales::kRefuse,
                    const std::string& config = "{}") {
    return error_of([&] { read(tensors, unit, config); });
  }
  TempDir dir_;
};

TEST_F(KvScalesTest, EveryKnownNameOfAScalarOrOneAHead) {
  const auto layers = read({scalar("l3.self_attn.k_proj.k_scale", 0.5f),
                            f32("l3.self_attn.v_proj.v_scale", {0.25f, 0.125f}),
                            f32("l7.self_attn.kv_scale", {2})});
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_THAT(layers[0].k, ElementsAre(0.5f, 0.5f));
  EXPECT_THAT(layers[0].v, ElementsAre(0.25f, 0.125f));
  EXPECT_THAT(layers[1].k, ElementsAre(2.0f, 2.0f));
  EXPECT_THAT(layers[1].v, ElementsAre(2.0f, 2.0f));
  EXPECT_TRUE(calibrated(layers));

  const auto others =
      read({scalar("l3.self_attn.k_scale", 3), scalar("l3.self_attn.v_scale", 4),
            make_tensor<bf16>("l7.self_attn.attn.k_scale", DType::kBF16, {1}, {to_bf16(0.5f)}),
            scalar("l7.self_attn.attn.v_scale", 5)});
  EXPECT_THAT(others[0].k, ElementsAre(3.0f, 3.0f));
  EXPECT_THAT(others[0].v, ElementsAre(4.0f, 4.0f));
  EXPECT_THAT(others[1].k, ElementsAre(0.5f, 0.5f));
}

TEST_F(KvScalesTest, MissingScalesAreListed) {
  EXPECT_THAT(fault({}), AllOf(HasSubstr("2 of 2"), HasSubstr("l3.self_attn.k_proj.k_scale"),
                               HasSubstr("l7.self_attn.k_proj.k_scale"), HasSubstr("fp8_dynamic"),
                               HasSubstr("kv_unit_scale")));
  // Half a set is a damaged checkpoint, which no key excuses.
  const std::vector<OwnedTensor> half{scalar("l3.self_attn.kv_scale", 0.5f)};
  for (const UnitScales unit : {UnitScales::kRefuse, UnitScales::kAccept}) {
    EXPECT_THAT(fault(half, unit), AllOf(HasSubstr("1 of 2"), HasSubstr("l7.self_attn."),
                                         Not(HasSubstr("kv_unit_scale"))));
  }
  EXPECT_THAT(fault({scalar("l3.self_attn.k_scale", 0.5f), scalar("l7.self_attn.kv_scale", 1)}),
              HasSubstr("\"l3.self_attn.v_scale\" is not"));
}

TEST_F(KvScalesTest, OnesEverywhereAreNotCalibrated) {
  std::vector<OwnedTensor> ones{scalar("l3.self_attn.kv_scale", 1),
                                f32("l7.self_attn.k_scale", {1, 1}),
                                f32("l7.self_attn.v_scale", {1, 1})};
  EXPECT_THAT(fault(ones), AllOf(HasSubstr("1.0"), HasSubstr("kv_unit_scale")));
  EXPECT_FALSE(calibrated(read(ones, UnitScales::kAccept)));
  ones.back() = f32("l7.self_attn.v_scale", {1, 0.5f});  // one that differs is enough
  EXPECT_TRUE(calibrated(read(ones)));

  const auto none = read({}, UnitScales::kAccept);
  EXPECT_THAT(none.at(1).v, ElementsAre(1.0f, 1.0f));
  EXPECT_FALSE(calibrated(none));
}

TEST_F(KvScalesTest, UnusableScalesAreNamed) {
  const auto with = [](OwnedTensor tensor) {
    return std::vector<OwnedTensor>{std::move(tensor), scalar("l7.self_attn.kv_scale", 0.5f)};
  };
  const std::string name = "l3.self_attn.kv_scale";
  for (const float value : {0.0f, -1.0f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THAT(fault(with(scalar(name, value))), AllOf(HasSubstr(name), HasSubstr("positive")));
  }
  EXPECT_THAT(fault(with(f32(name, {1, 2, 3}))), AllOf(HasSubstr(name), HasSubstr("2 KV heads")));
  EXPECT_THAT(fault(with(make_tensor<std::uint8_t>(name, DType::kU8, {1}, {1}))), HasSubstr("U8"));
}

TEST_F(KvScalesTest, ScalesOfAnotherFormatAreRefused) {
  const std::vector<OwnedTensor> scales{scalar("l3.self_attn.kv_scale", 0.5f),
                                        scalar("l7.self_attn.kv_scale", 0.5f)};
  const auto config = [](const std::string& declared) {
    return R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", )" +
           declared + "}}";
  };
  for (const char* fp8 : {R"("kv_cache_quant_algo": "FP8")", R"("kv_cache_quant_algo": null)",
                          R"("kv_cache_scheme": {"num_bits": 8, "type": "float"})"}) {
    EXPECT_EQ(fault(scales, UnitScales::kRefuse, config(fp8)), "") << fp8;
  }
  for (const char* other : {R"("kv_cache_quant_algo": "NVFP4")",
                            R"("kv_cache_scheme": {"num_bits": 8, "type": "int"})"}) {
    EXPECT_THAT(fault(scales, UnitScales::kRefuse, config(other)), HasSubstr("declared for"))
        << other;
  }
}

// A checkpoint with scales is loaded as well where the cache does without them.
TEST_F(KvScalesTest, ScalesAreNoLeftovers) {
  const auto checkpoint = write(
      {scalar("l3.self_attn.k_proj.k_scale", 0.5f), scalar("l3.self_attn.v_proj.v_scale", 0.5f)});
  std::vector<bf16> w(4);
  const Loader loader(checkpoint, {{.name = "w", .shape = {2, 2}, .dst = w.data()}}, {});
  EXPECT_EQ(loader.bytes_to_read(), 8);
}

}  // namespace
}  // namespace tandem
