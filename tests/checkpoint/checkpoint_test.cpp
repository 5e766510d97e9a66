// Whole directories: index, shards, missing and surplus parts, identity, manifest.
#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/hash.h"
#include "checkpoint/verify.h"
#include "tests/checkpoint/builder.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using testing::counting_bf16;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::TempDir;

constexpr const char* kShard1 = "model-00001-of-00002.safetensors";
constexpr const char* kShard2 = "model-00002-of-00002.safetensors";

class CheckpointTest : public ::testing::Test {
 protected:
  // Two shards: a, b in the first, c in the second.
  void SetUp() override {
    testing::write_side_files(dir_.path());
    testing::write_tensors(dir_ / kShard1, {counting_bf16("a", {2, 3}), counting_bf16("b", {4})});
    testing::write_tensors(dir_ / kShard2, {counting_bf16("c", {5})});
    testing::write_index(dir_.path(), {{"a", kShard1}, {"b", kShard1}, {"c", kShard2}});
  }
  std::string open_error() {
    return error_of([&] { Checkpoint::open(dir_.path()); });
  }
  TempDir dir_;
};

TEST_F(CheckpointTest, OpensTwoShards) {
  const auto checkpoint = Checkpoint::open(dir_.path());
  ASSERT_EQ(checkpoint.tensors().size(), 3u);
  EXPECT_EQ(checkpoint.files().size(), 2u);
  EXPECT_EQ(checkpoint.file_path(checkpoint.find("c")->file).filename(), kShard2);
  EXPECT_EQ(checkpoint.find("a")->shape, (TensorShape{2, 3}));
  EXPECT_EQ(checkpoint.find("d"), nullptr);
  EXPECT_EQ(checkpoint.weight_bytes(), 30u);
  EXPECT_THAT(checkpoint.leftover_tensors(), IsEmpty());
  EXPECT_THAT(checkpoint.leftover_files(), IsEmpty());
}

TEST_F(CheckpointTest, NamesAMissingShard) {
  fs::remove(dir_ / kShard2);
  EXPECT_THAT(open_error(), HasSubstr(fmt::format("{}: is named by", kShard2)));
}

TEST_F(CheckpointTest, ListsEverythingMissingAtOnce) {
  fs::remove(dir_ / kShard2);
  fs::remove(dir_ / "config.json");
  fs::remove(dir_ / "tokenizer.json");
  const auto message = open_error();
  EXPECT_THAT(message, HasSubstr("3 faults"));
  EXPECT_THAT(message, HasSubstr("config.json is missing"));
  EXPECT_THAT(message, HasSubstr("tokenizer.json is missing"));
  EXPECT_THAT(message, HasSubstr(kShard2));
}

TEST_F(CheckpointTest, ADrafterNeedsNoTokenizer) {
  fs::remove(dir_ / "tokenizer.json");
  EXPECT_THAT(error_of([&] { Checkpoint::open(dir_.path(), TokenizerFile::kOptional); }),
              IsEmpty());
}

TEST_F(CheckpointTest, NamesATensorThatIsNotInItsShard) {
  testing::write_tensors(dir_ / kShard2, {counting_bf16("d", {5})});
  EXPECT_THAT(open_error(), HasSubstr(fmt::format("tensor \"c\" is not in {}", kShard2)));
}

TEST_F(CheckpointTest, RefusesATensorInTwoShards) {
  testing::write_tensors(dir_ / kShard2, {counting_bf16("c", {5}), counting_bf16("b", {4})});
  EXPECT_THAT(open_error(), HasSubstr(fmt::format("\"b\" lies in {} although", kShard2)));
}

TEST_F(CheckpointTest, ReportsLeftoversWithoutLoadingThem) {
  testing::write_tensors(dir_ / kShard2, {counting_bf16("c", {5}), counting_bf16("extra", {4})});
  testing::write_tensors(dir_ / "old.safetensors", {counting_bf16("x", {1})});
  const auto checkpoint = Checkpoint::open(dir_.path());
  EXPECT_EQ(checkpoint.find("extra"), nullptr);
  ASSERT_EQ(checkpoint.leftover_tensors().size(), 1u);
  EXPECT_EQ(checkpoint.leftover_tensors()[0], fmt::format("extra ({})", kShard2));
  ASSERT_EQ(checkpoint.leftover_files().size(), 1u);
  FaultList faults;
  verify_checkpoint(checkpoint, {}, faults);
  EXPECT_EQ(faults.size(), 2u) << testing::all_faults(faults);
}

TEST_F(CheckpointTest, NamesATruncatedShard) {
  fs::resize_file(dir_ / kShard1, fs::file_size(dir_ / kShard1) - 1);
  const auto message = open_error();
  EXPECT_THAT(message, HasSubstr(fmt::format("{}: is truncated", kShard1)));
  EXPECT_THAT(message, Not(HasSubstr("\"a\" is not in")));
}

TEST_F(CheckpointTest, RefusesAnIndexThatLeavesTheDirectory) {
  for (const char* name : {"../x.safetensors", "/etc/passwd", "a/b.safetensors", "..", ""}) {
    testing::write_index(dir_.path(), {{"a", name}});
    EXPECT_THAT(open_error(), HasSubstr("tensor \"a\" is not mapped to a file name")) << name;
  }
}

TEST_F(CheckpointTest, RefusesBrokenIndexes) {
  const fs::path index = dir_ / "model.safetensors.index.json";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"{\"weight_map\": ", "not valid JSON"},
      {std::string("{}\0", 3), "zero byte"},
      {"[]", "no weight_map"},
      {"{}", "no weight_map"},
      {R"({"weight_map": []})", "no weight_map"},
      {R"({"weight_map": {"a": 1}})", "is not mapped to a file name"},
      {fmt::format(R"({{"weight_map": {{"a": "{0}", "a": "{0}"}}}})", kShard1), "occurs twice"},
      {std::string(100000, '['), "nested deeper"},
      {"version https://git-lfs.github.com/spec/v1\n", "git-lfs pointer"},
      {"{\"weight_map\": {\"\xff\": \"x\"}}", "not valid JSON"}};
  for (const auto& [text, expected] : cases) {
    testing::write_text(index, text);
    EXPECT_THAT(open_error(), HasSubstr(expected)) << text.substr(0, 80);
  }
}

TEST_F(CheckpointTest, AnInterruptedDownloadWithoutIndexIsNamed) {
  fs::remove(dir_ / "model.safetensors.index.json");
  EXPECT_THAT(open_error(), HasSubstr("model.safetensors.index.json is missing"));
  fs::remove(dir_ / kShard2);
  EXPECT_THAT(open_error(), HasSubstr("is one shard of several"));
  fs::remove(dir_ / kShard1);
  EXPECT_THAT(open_error(), HasSubstr("neither model.safetensors.index.json nor"));
}

TEST_F(CheckpointTest, IdentityIgnoresPlaceAndTimeButNotContent) {
  TempDir other;
  fs::copy(dir_.path(), other / "copy", fs::copy_options::recursive);
  fs::last_write_time(other / "copy" / kShard1, fs::file_time_type::clock::now());
  const auto first = Checkpoint::open(dir_.path()).identity_hash();
  EXPECT_EQ(first, Checkpoint::open(other / "copy").identity_hash());

  // The same header over other data: a later revision of the same model.
  testing::write_tensors(other / "copy" / kShard2, {counting_bf16("c", {5}, 1)});
  EXPECT_NE(first, Checkpoint::open(other / "copy").identity_hash());
  fs::copy_file(dir_ / kShard2, other / "copy" / kShard2, fs::copy_options::overwrite_existing);
  EXPECT_EQ(first, Checkpoint::open(other / "copy").identity_hash());
  testing::write_text(other / "copy" / "tokenizer.json", "{ }");
  EXPECT_NE(first, Checkpoint::open(other / "copy").identity_hash());
}

TEST_F(CheckpointTest, ChecksAManifest) {
  const auto checkpoint = Checkpoint::open(dir_.path());
  const auto hashes = checkpoint.hash_weights();
  EXPECT_EQ(hashes[0], sha256_file_hex(dir_ / kShard1));
  const auto check = [&](const std::string& text) {
    testing::write_text(dir_ / "SHA256SUMS", text);
    FaultList faults;
    verify_checkpoint(checkpoint, dir_ / "SHA256SUMS", faults);
    return testing::all_faults(faults);
  };
  const std::string good = fmt::format("{}  {}\n", hashes[0], kShard1);
  EXPECT_EQ(check(good + fmt::format("{} *./{}\r\n", hashes[1], kShard2)), "");
  EXPECT_THAT(check(good), HasSubstr(fmt::format("{}: is not in the manifest", kShard2)));
  EXPECT_THAT(check(good + fmt::format("{}  {}\n", hashes[0], kShard2)),
              HasSubstr(fmt::format("{}: SHA-256 is {}", kShard2, hashes[1])));
  EXPECT_THAT(check(good + fmt::format("{}  gone.bin\n", hashes[0])), HasSubstr("gone.bin: is in"));
  EXPECT_THAT(check(good + "abc  x\n"), HasSubstr("SHA256SUMS:2: expected"));
  EXPECT_THAT(check(good + good), HasSubstr("listed twice"));
  FaultList faults;
  verify_checkpoint(checkpoint, dir_ / "none", faults);
  EXPECT_THAT(testing::all_faults(faults), HasSubstr("cannot open the manifest"));
}

TEST(CheckpointFixture, OpensASingleFile) {
  const auto checkpoint = Checkpoint::open(testing::test_data("tiny-qwen3.8"));
  EXPECT_EQ(checkpoint.tensors().size(), 71u);
  EXPECT_EQ(checkpoint.files().size(), 1u);
}

TEST(CheckpointFixture, RefusesWhatIsNoDirectory) {
  EXPECT_THAT(error_of([] { Checkpoint::open("/nonexistent"); }), HasSubstr("is not a directory"));
}

}  // namespace
}  // namespace tandem
