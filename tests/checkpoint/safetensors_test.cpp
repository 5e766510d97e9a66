// Headers from untrusted files: what is legal is read, everything else is named and refused.
#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/checkpoint/builder.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;
using testing::write_raw;

std::string entry(const std::string& name, const std::string& rest) {
  return "\"" + name + "\": {" + rest + "}";
}
const std::string kGood = R"("dtype": "F32", "shape": [2], "data_offsets": [0, 8])";

struct BadHeader {
  const char* label;
  std::string header;
  std::size_t data_bytes;
  const char* expected;  // part of the message
};

// Printed by GoogleTest when a case fails.
void PrintTo(const BadHeader& bad, std::ostream* out) { *out << bad.label; }

class BadHeaderTest : public ::testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaderTest, IsNamedAndRefused) {
  TempDir dir;
  write_raw(dir / "bad.safetensors", GetParam().header, GetParam().data_bytes);
  const auto message = testing::error_of([&] { read_safetensors_header(dir / "bad.safetensors"); });
  EXPECT_THAT(message, HasSubstr("bad.safetensors: "));
  EXPECT_THAT(message, HasSubstr(GetParam().expected));
}

INSTANTIATE_TEST_SUITE_P(
    Corrupt, BadHeaderTest,
    ::testing::Values(
        BadHeader{"not_json", "{\"a\" 1}", 0, "not valid JSON at byte"},
        BadHeader{"not_an_object", "[1, 2]", 0, "does not start with '{'"},
        BadHeader{"leading_space", " {}", 0, "does not start with '{'"},
        BadHeader{"text_behind", "{} x", 0, "not valid JSON"},
        BadHeader{"cut_json", "{" + entry("a", kGood), 8, "not valid JSON"},
        BadHeader{"invalid_utf8", "{" + entry("a\xff\xfe", kGood) + "}", 8, "not valid JSON"},
        BadHeader{"nul_padding", "{" + entry("a", kGood) + "}" + std::string(3, '\0'), 8,
                  "zero byte"},
        BadHeader{"duplicate_name", "{" + entry("a", kGood) + "," + entry("a", kGood) + "}", 8,
                  "\"a\" occurs twice"},
        BadHeader{"duplicate_key", "{" + entry("a", kGood + ", \"shape\": [2]") + "}", 8,
                  "key \"shape\" occurs twice in tensor \"a\""},
        BadHeader{"unknown_key", "{" + entry("a", kGood + ", \"extra\": 1") + "}", 8,
                  "unknown key \"extra\""},
        BadHeader{"unknown_dtype",
                  "{" + entry("a", R"("dtype": "F4", "shape": [2], "data_offsets": [0, 1])") + "}",
                  1, "unknown dtype \"F4\""},
        BadHeader{"dtype_a_number",
                  "{" + entry("a", R"("dtype": 7, "shape": [2], "data_offsets": [0, 8])") + "}", 8,
                  "the number 7"},
        BadHeader{"missing_shape",
                  "{" + entry("a", R"("dtype": "F32", "data_offsets": [0, 8])") + "}", 8, "lacks"},
        BadHeader{
            "negative_dimension",
            "{" + entry("a", R"("dtype": "F32", "shape": [-2], "data_offsets": [0, 8])") + "}", 8,
            "negative number -2"},
        BadHeader{
            "float_dimension",
            "{" + entry("a", R"("dtype": "F32", "shape": [2.0], "data_offsets": [0, 8])") + "}", 8,
            "the number 2.0"},
        BadHeader{"huge_dimension",
                  "{" + entry("a", R"("dtype": "F32", "shape": [36893488147419103232],
                              "data_offsets": [0, 8])") +
                      "}",
                  8, "36893488147419103232"},
        BadHeader{"shape_overflow",
                  "{" + entry("a", R"("dtype": "F32", "shape": [4294967296, 4294967296],
                              "data_offsets": [0, 0])") +
                      "}",
                  0, "overflows"},
        BadHeader{"size_mismatch",
                  "{" + entry("a", R"("dtype": "F32", "shape": [3], "data_offsets": [0, 8])") + "}",
                  8, "takes 12 bytes but its data_offsets span 8"},
        BadHeader{"reversed_offsets",
                  "{" + entry("a", R"("dtype": "F32", "shape": [2], "data_offsets": [8, 0])") + "}",
                  8, "begin <= end"},
        BadHeader{
            "three_offsets",
            "{" + entry("a", R"("dtype": "F32", "shape": [2], "data_offsets": [0, 8, 9])") + "}", 8,
            "begin <= end"},
        BadHeader{"offset_near_2_64",
                  "{" + entry("a", R"("dtype": "F32", "shape": [2],
                              "data_offsets": [18446744073709551608, 18446744073709551615])") +
                      "}",
                  8, "18446744073709551608"},
        BadHeader{"overlap",
                  "{" + entry("a", kGood) + "," +
                      entry("b", R"("dtype": "F32", "shape": [2], "data_offsets": [4, 12])") + "}",
                  12, "\"b\" overlaps \"a\" by 4 bytes"},
        BadHeader{"hole",
                  "{" + entry("a", kGood) + "," +
                      entry("b", R"("dtype": "F32", "shape": [1], "data_offsets": [12, 16])") + "}",
                  16, "4 bytes between \"a\" and \"b\""},
        BadHeader{"hole_at_start",
                  "{" + entry("a", R"("dtype": "U8", "shape": [4], "data_offsets": [4, 8])") + "}",
                  8, "4 bytes between \"the header\" and \"a\""},
        BadHeader{"truncated_data", "{" + entry("a", kGood) + "}", 5,
                  "is truncated: its header describes 8 bytes of data, the file holds 5"},
        BadHeader{"data_behind", "{" + entry("a", kGood) + "}", 11,
                  "3 bytes after the last tensor"},
        BadHeader{"nesting_bomb", "{\"a\": " + std::string(200000, '[') + "}", 0, "an array"},
        BadHeader{"object_bomb", "{\"a\": {\"dtype\": {\"b\": 1}}}", 0, "an object"},
        BadHeader{"metadata_number", R"({"__metadata__": {"a": 1}})", 0, "at key \"a\""},
        BadHeader{"null_entry", R"({"a": null})", 0, "null"}),
    [](const auto& test_info) { return test_info.param.label; });

TEST(Safetensors, HeaderLengthBeyondTheFileAllocatesNothing) {
  TempDir dir;
  for (const std::uint64_t length : {~std::uint64_t{0}, std::uint64_t{1} << 63,
                                     kMaxSafetensorsHeaderBytes + 1, std::uint64_t{3}}) {
    write_raw(dir / "bad.safetensors", "{}", 0, length);
    EXPECT_THAT(testing::error_of([&] { read_safetensors_header(dir / "bad.safetensors"); }),
                HasSubstr(fmt::format("header length {} exceeds", length)));
  }
}

TEST(Safetensors, NamesAPointerFile) {
  TempDir dir;
  testing::write_text(dir / "model.safetensors",
                      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n");
  EXPECT_THAT(testing::error_of([&] { read_safetensors_header(dir / "model.safetensors"); }),
              HasSubstr("git-lfs pointer"));
}

TEST(Safetensors, RefusesShortEmptyAndIrregularFiles) {
  TempDir dir;
  testing::write_text(dir / "empty", "");
  testing::write_text(dir / "short", "1234567");
  EXPECT_THAT(testing::error_of([&] { read_safetensors_header(dir / "empty"); }),
              HasSubstr("too short"));
  EXPECT_THAT(testing::error_of([&] { read_safetensors_header(dir / "short"); }),
              HasSubstr("too short"));
  EXPECT_THAT(testing::error_of([&] { read_safetensors_header(dir.path()); }),
              HasSubstr("not a regular file"));
  EXPECT_THAT(testing::error_of([&] { read_safetensors_header(dir / "none"); }),
              HasSubstr("cannot open"));
}

TEST(Safetensors, ListsAllFaultsOfAFile) {
  TempDir dir;
  write_raw(dir / "bad.safetensors",
            R"({"a": {"dtype": "X1", "shape": [1], "data_offsets": [0, 4]},
                "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 8]}})",
            8);
  FaultList faults;
  scan_safetensors_header(dir / "bad.safetensors", faults);
  ASSERT_EQ(faults.size(), 2u) << testing::all_faults(faults);
  EXPECT_THAT(faults.items()[0], HasSubstr("\"a\": unknown dtype \"X1\""));
  EXPECT_THAT(faults.items()[1], HasSubstr("\"b\": F32 [2] takes 8 bytes"));
}

TEST(Safetensors, MessagesCarryNoControlCharacters) {
  TempDir dir;
  write_raw(
      dir / "bad.safetensors",
      "{" + entry("\\u001b[31mred\\n", R"("dtype": "X1", "shape": [], "data_offsets": [0, 0])") +
          "}",
      0);
  FaultList faults;
  scan_safetensors_header(dir / "bad.safetensors", faults);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults.items()[0].find('\x1b'), std::string::npos);
  EXPECT_EQ(faults.items()[0].find('\n'), std::string::npos);
}

TEST(Safetensors, ReadsWhatIsLegal) {
  TempDir dir;
  // Trailing spaces, entries out of order, a scalar, an empty tensor, five dimensions, odd offsets.
  write_raw(dir / "ok.safetensors",
            R"({"__metadata__": {"format": "pt"},
                "five": {"dtype": "U8", "shape": [1, 1, 3, 1, 1], "data_offsets": [4, 7]},
                "scalar": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]},
                "none": {"dtype": "BF16", "shape": [0, 8], "data_offsets": [4, 4]},
                "odd": {"dtype": "F16", "shape": [1], "data_offsets": [7, 9]}})"
            "     ",
            9);
  const auto header = read_safetensors_header(dir / "ok.safetensors");
  ASSERT_EQ(header.tensors.size(), 4u);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  EXPECT_EQ(header.tensors[0].name, "scalar");
  EXPECT_EQ(header.tensors[0].begin, 8 + header.header_bytes);
  EXPECT_EQ(header.tensors[1].name, "none");
  EXPECT_EQ(header.tensors[1].bytes, 0u);
  EXPECT_EQ(header.tensors[2].shape, (TensorShape{1, 1, 3, 1, 1}));
  EXPECT_EQ(header.tensors[3].begin + header.tensors[3].bytes, header.file_bytes);
}

TEST(Safetensors, ReadsWhatItWrites) {
  TempDir dir;
  const std::vector<float> values{1, 2, 3, 4, 5, 6};
  const std::vector<std::int8_t> codes{-1, 2, 3};
  write_safetensors(
      dir / "x.safetensors",
      {{"w", DType::kF32, {2, 3}, values.data()}, {"c", DType::kI8, {3}, codes.data()}},
      {{"by", "a \"test\""}});
  const auto header = read_safetensors_header(dir / "x.safetensors");
  EXPECT_EQ(header.header_bytes % 8, 0u);
  EXPECT_EQ(header.metadata.at("by"), "a \"test\"");
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].dtype, DType::kF32);
  EXPECT_EQ(header.tensors[1].shape, (TensorShape{3}));
  const std::string file = testing::read_text(dir / "x.safetensors");
  EXPECT_EQ(file[header.tensors[1].begin], '\xff');
}

// Random damage to a real header is either harmless or named; it never crashes or throws otherwise.
TEST(Safetensors, SurvivesDamagedHeaders) {
  TempDir dir;
  const std::string good =
      testing::read_text(testing::test_data("tiny-qwen3.8") / "model.safetensors").substr(0, 9000);
  std::mt19937 random(1);
  int num_refused = 0;
  for (int trial = 0; trial < 300; ++trial) {
    std::string bad = good;
    for (int i = 0; i <= trial % 4; ++i) {
      bad[random() % 8200] = static_cast<char>(random() % 256);
    }
    testing::write_text(dir / "bad.safetensors", bad);
    FaultList faults;
    scan_safetensors_header(dir / "bad.safetensors", faults);
    num_refused += faults.empty() ? 0 : 1;
  }
  EXPECT_EQ(num_refused, 300);  // the data of the fixture is cut off, if nothing else
}

TEST(Safetensors, ReadsTheFixture) {
  const auto header =
      read_safetensors_header(testing::test_data("tiny-qwen3.8") / "model.safetensors");
  EXPECT_EQ(header.tensors.size(), 71u);
  EXPECT_EQ(header.file_bytes, 10154600u);
}

}  // namespace
}  // namespace tandem
