// tandem inspect: what it prints, and the exit code for sound and for damaged checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/hash.h"
#include "cli/commands.h"
#include "tests/checkpoint/builder.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TempDir;

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

Outcome inspect(const InspectOptions& options) {
  Outcome outcome;
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  outcome.exit_code = inspect_command(options);
  outcome.err = ::testing::internal::GetCapturedStderr();
  outcome.out = ::testing::internal::GetCapturedStdout();
  return outcome;
}

class InspectTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::copy(testing::test_data("tiny-qwen3.8"), dir_ / "model");
    options_.checkpoint = (dir_ / "model").string();
  }
  fs::path weights() const { return dir_ / "model" / "model.safetensors"; }

  TempDir dir_;
  InspectOptions options_;
};

TEST_F(InspectTest, DescribesTheFixture) {
  options_.verify = true;
  options_.np = 2;
  const auto result = inspect(options_);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("Qwen3.8 (Qwen3_5ForCausalLM)"),
                    HasSubstr("4 (3 linear attention, 1 full attention), 1 MTP"),
                    HasSubstr("parameters    5.07 M"), HasSubstr("1 with 71 tensors"),
                    HasSubstr("none declared"), HasSubstr("rank 0 of 2 keeps"),
                    HasSubstr("rows, per segment -> [1280, 128]"),
                    HasSubstr("columns -> [128, 512]"), HasSubstr("verified: complete")));
}

TEST_F(InspectTest, ListsAllFaultsOfADamagedCheckpoint) {
  fs::resize_file(weights(), fs::file_size(weights()) - 10);
  fs::remove(dir_ / "model" / "tokenizer.json");
  const auto result = inspect(options_);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("2 faults"), HasSubstr("model.safetensors: is truncated"),
                                HasSubstr("tokenizer.json is missing")));
}

TEST_F(InspectTest, RefusesRanksThatDoNotDivide) {
  options_.np = 3;
  const auto result = inspect(options_);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("num_attention_heads 4 does not divide by 3 ranks"));
}

TEST_F(InspectTest, ChecksTheManifest) {
  options_.manifest = (dir_ / "sums").string();
  testing::write_text(*options_.manifest, sha256_file_hex(weights()) + "  model.safetensors\n");
  EXPECT_EQ(inspect(options_).exit_code, 0);
  testing::write_text(*options_.manifest, std::string(64, '0') + "  model.safetensors\n");
  const auto result = inspect(options_);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("the manifest says 0000"));
}

TEST_F(InspectTest, LeftoversAreNotedAndFailOnlyVerification) {
  testing::write_tensors(dir_ / "model" / "other.safetensors", {testing::counting_bf16("x", {1})});
  EXPECT_THAT(inspect(options_).out, HasSubstr("note: other.safetensors is not in the index"));
  options_.verify = true;
  const auto result = inspect(options_);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("other.safetensors"));
}

TEST_F(InspectTest, DescribesFamiliesItCannotRun) {
  testing::write_text(dir_ / "model" / "config.json",
                      R"({"model_type": "deepseek_v4", "num_hidden_layers": 43})");
  const auto result = inspect(options_);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("DeepSeek-V4-Flash (deepseek_v4)"),
                                HasSubstr("not supported yet by this build"), HasSubstr("43")));
}

TEST(Inspect, NamesAMissingDirectory) {
  InspectOptions options;
  options.checkpoint = "/nonexistent";
  EXPECT_THAT(testing::error_of([&] { inspect_command(options); }),
              HasSubstr("is not a directory"));
}

}  // namespace
}  // namespace tandem
