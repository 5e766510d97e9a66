// The file of a benchmark: the numbers that were printed, with units, and an existing file is safe.
#include "output/bench_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "bench/bench_rows.h"
#include "output/bench_schema.h"
#include "output/h5_file.h"
#include "output/redact.h"
#include "output/result_reader.h"
#include "tests/support/test_data.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;

const BenchConditions kConditions{.program = program_text("1.2", "abc"),
                                  .host = "box",
                                  .rank = 0,
                                  .num_ranks = 1,
                                  .backend = "cpu, 2 threads",
                                  .transport = "",
                                  .repeats = {.groups = 3, .runs = 5}};
const std::vector<MemoryBenchResult> kMemory = {
    {MemoryTraffic::kRead, "sweep 0", 1'000'000, 1.0 / 3, true},
    {MemoryTraffic::kRead, "sweep 1", 1'000'000, 1e-6, false},
    {MemoryTraffic::kCopy, "backend copy", 2'000'000, 1e-3, true}};
const std::vector<GemmBenchResult> kGemm = {
    {ops::WeightFormat::kNvfp4, {64, 32, "mlp down"}, 16, 3000, 1.0 / 7, 1e-7},
    {ops::WeightFormat::kBf16, {64, 32, "given"}, 1, 4352, 2e-6, HUGE_VAL}};
const GemmBounds kBounds{.read_bytes_per_s = 3e10,
                         .matrix = {.flops_per_s = 2e12, .source = "lib"}};
const std::vector<CollectiveBenchResult> kCollective = {
    {Collective::kAllReduce, 8, 2, 1e-6 / 3, true}, {Collective::kAllGather, 4096, 2, 1e-5, false}};

BenchContents with_passport(const char* benchmark, BenchConditions conditions,
                            BenchContents contents) {
  contents.passport.set("program_version", "1.2");
  contents.passport.set("git_revision", "abc");
  contents.passport.set("ranks.count", std::int64_t{conditions.num_ranks});
  add_bench(benchmark, conditions, contents.passport);
  return contents;
}

BenchContents memory_file() {
  return with_passport("memory", kConditions, memory_contents(kConditions, kMemory));
}

void write(const std::filesystem::path& path, const BenchContents& contents) {
  BenchFile(path, false).write(contents, ExitCode::kDone);
}

std::string refusal(const std::filesystem::path& path) {
  try {
    BenchFile file(path, false);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfiguration);
    return e.what();
  }
  ADD_FAILURE() << "accepted " << path;
  return "";
}

TEST(BenchFile, HasThePassportTheRanksAndItsOwnTable) {
  const TempDir dir;
  write(dir / "a.h5", memory_file());
  const auto file = H5File::open_for_reading(dir / "a.h5");
  EXPECT_EQ(std::get<std::int64_t>(file.attributes("/").at("schema_version")),
            schema::kSchemaVersion);
  const auto passport = file.attributes("/passport");
  EXPECT_EQ(std::get<std::string>(passport.at("bench.name")), "memory");
  EXPECT_EQ(std::get<std::string>(passport.at("exit_status")), "done");
  EXPECT_FALSE(std::get<std::string>(passport.at("end_utc")).empty());
  EXPECT_EQ(std::get<std::int64_t>(passport.at("bench.runs_per_group")), 5);
  for (const auto& info : schema::all_bench_datasets()) {
    const bool own =
        info.path.starts_with("/bench/ranks") || info.path.starts_with("/bench/memory");
    ASSERT_EQ(file.exists(info.path.substr(0, info.path.rfind('/'))), own) << info.path;
    if (!own) continue;
    const auto attributes = file.attributes(info.path);
    EXPECT_EQ(std::get<std::string>(attributes.at("units")), info.units) << info.path;
    EXPECT_EQ(std::get<std::string>(attributes.at("description")), info.description) << info.path;
    EXPECT_EQ(std::get<std::int64_t>(attributes.at("since")), info.since) << info.path;
    EXPECT_EQ(attributes.contains("_FillValue"), info.may_miss) << info.path;
    EXPECT_EQ(file.rows(info.path), info.path.starts_with("/bench/ranks") ? 1u : 3u) << info.path;
  }
}

TEST(BenchFile, MemoryValuesAreThoseMeasured) {
  const TempDir dir;
  write(dir / "a.h5", memory_file());
  const auto contents = read_bench_file(dir / "a.h5");
  const auto& rows = std::get<std::vector<BenchMemoryRow>>(contents.rows);
  ASSERT_EQ(rows.size(), kMemory.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].traffic, traffic_name(kMemory[i].traffic));
    EXPECT_EQ(rows[i].method, kMemory[i].method);
    EXPECT_EQ(rows[i].bytes, kMemory[i].bytes);
    EXPECT_EQ(rows[i].seconds, kMemory[i].seconds);
    EXPECT_EQ(rows[i].bytes_per_s, kMemory[i].bytes_per_s());
    EXPECT_EQ(rows[i].correct, kMemory[i].correct);
  }
  ASSERT_EQ(contents.ranks.size(), 1u);
  EXPECT_EQ(contents.ranks[0].backend, kConditions.backend);
  EXPECT_EQ(contents.ranks[0].read_bytes_per_s, kMemory[0].bytes_per_s());  // the correct one
  EXPECT_EQ(contents.ranks[0].copy_bytes_per_s, kMemory[2].bytes_per_s());
  EXPECT_FALSE(contents.ranks[0].matrix_flops_per_s.has_value());
}

TEST(BenchFile, GemmSharesAreOfTheRanksBoundsAndMissingWithoutThem) {
  const TempDir dir;
  write(dir / "a.h5",
        with_passport("gemm", kConditions, gemm_contents(kConditions, kGemm, kBounds)));
  const auto contents = read_bench_file(dir / "a.h5");
  const auto& rows = std::get<std::vector<BenchGemmRow>>(contents.rows);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].format, "nvfp4");
  EXPECT_EQ(rows[0].linear, "mlp down");
  EXPECT_EQ(rows[0].rows, 16);
  EXPECT_EQ(rows[0].share_of_read_bandwidth, kGemm[0].bytes_per_s() / 3e10);
  EXPECT_EQ(rows[0].share_of_matrix_rate, kGemm[0].flops_per_s() / 2e12);
  EXPECT_EQ(rows[0].error, 1e-7);
  EXPECT_TRUE(rows[0].correct);
  EXPECT_FALSE(rows[1].error.has_value());  // not a number
  EXPECT_FALSE(rows[1].correct);
  EXPECT_EQ(contents.ranks[0].matrix_flops_per_s, 2e12);

  const GemmBounds one{.read_bytes_per_s = 3e10, .matrix = {.source = "none here"}};
  const auto without = gemm_contents(kConditions, kGemm, one);
  EXPECT_FALSE(std::get<std::vector<BenchGemmRow>>(without.rows)[0].share_of_matrix_rate);
  EXPECT_FALSE(without.ranks[0].matrix_flops_per_s.has_value());
  EXPECT_EQ(without.ranks[0].matrix_rate_source, "none here");
}

// So every printed number is in the file.
TEST(BenchFile, IsPrintedAsTheBenchmarkPrintedIt) {
  const TempDir dir;
  write(dir / "m.h5", memory_file());
  EXPECT_EQ(contents_text(read_bench_file(dir / "m.h5")),
            conditions_text(kConditions) + memory_table(kMemory));
  write(dir / "g.h5",
        with_passport("gemm", kConditions, gemm_contents(kConditions, kGemm, kBounds)));
  EXPECT_EQ(contents_text(read_bench_file(dir / "g.h5")),
            conditions_text(kConditions) + gemm_table(kGemm, kBounds));
  auto conditions = kConditions;
  conditions.transport = "mpi";
  write(dir / "c.h5",
        with_passport("collective", conditions, collective_contents(conditions, kCollective)));
  EXPECT_EQ(contents_text(read_bench_file(dir / "c.h5")),
            conditions_text(conditions) + collective_table(kCollective));
}

TEST(BenchFile, AnExistingFileIsRefusedOrReplaced) {
  const TempDir dir;
  testing::write_text(dir / "a.h5", "not ours");
  EXPECT_THAT(
      refusal(dir / "a.h5"),
      ::testing::AllOf(HasSubstr("a.h5"), HasSubstr("exists already"), HasSubstr("--overwrite")));
  EXPECT_EQ(testing::read_text(dir / "a.h5"), "not ours");
  {
    BenchFile file(dir / "a.h5", true);
    EXPECT_EQ(testing::read_text(dir / "a.h5"), "not ours");  // until write()
    file.write(memory_file(), ExitCode::kInternal);
  }
  const auto contents = read_bench_file(dir / "a.h5");
  EXPECT_EQ(contents.passport.text("exit_status"), "internal_error");
  EXPECT_FALSE(std::filesystem::exists(dir / "a.h5.tmp"));
  EXPECT_FALSE(std::filesystem::exists(dir / "a.h5.lock"));
}

TEST(BenchFile, APathThatCannotBeWrittenIsRefusedAtOnce) {
  const TempDir dir;
  EXPECT_THAT(refusal(dir.path()),
              ::testing::AllOf(HasSubstr("is a folder"), HasSubstr("--output")));
  testing::write_text(dir / "file", "");
  EXPECT_THAT(refusal(dir / "file/a.h5"), HasSubstr("cannot create the folder"));
}

TEST(BenchFile, TheRedactedCopyHasNoNames) {
  const TempDir dir;
  auto contents = memory_file();
  contents.passport.set("host", "box");
  contents.passport.set("user", "ada");
  contents.passport.set("bench.command_line",
                        std::vector<std::string>{"/home/ada/tandem", "--output", "adas.h5",
                                                 "--output=adas.h5", "--overwrite"});
  contents.ranks[0].host = "box.lab.example";
  contents.ranks[0].backend = "cpu of ada, on box";
  write(dir / "a.h5", contents);
  redact_result(dir / "a.h5", dir / "b.h5");
  const auto bytes = testing::read_text(dir / "b.h5");
  for (const char* secret : {"box", "ada"}) EXPECT_EQ(bytes.find(secret), std::string::npos);
  const auto copy = read_bench_file(dir / "b.h5");
  EXPECT_EQ(copy.passport.text("redacted"), "1");
  EXPECT_EQ(copy.passport.text("bench.command_line"),
            "<path>, --output, <path>, --output=<path>, --overwrite");
  const auto& rows = std::get<std::vector<BenchMemoryRow>>(copy.rows);
  ASSERT_EQ(rows.size(), kMemory.size());
  EXPECT_EQ(rows[0].seconds, kMemory[0].seconds);
  EXPECT_THAT(contents_text(copy), HasSubstr("<host>"));
}

TEST(BenchFile, WithoutWriteNothingIsLeft) {
  const TempDir dir;
  { const BenchFile file(dir / "a.h5", false); }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(BenchFile, IsToldFromOtherFiles) {
  const TempDir dir;
  write(dir / "a.h5", memory_file());
  testing::write_text(dir / "text", "no HDF5");
  EXPECT_TRUE(is_bench_file(dir / "a.h5"));
  EXPECT_FALSE(is_bench_file(dir / "text"));
  EXPECT_FALSE(is_bench_file(dir / "none"));
  try {
    read_result(dir / "a.h5", {});
    ADD_FAILURE() << "read as a result of a run";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfiguration);
    EXPECT_THAT(e.what(), HasSubstr("made by tandem bench"));
  }
}

}  // namespace
}  // namespace tandem
