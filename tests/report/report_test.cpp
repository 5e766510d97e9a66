#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "cli/commands.h"
#include "output/result_reader.h"
#include "output/result_writer.h"
#include "report/methods.h"
#include "report/statistics.h"
#include "report/tables.h"
#include "tests/output/sample_records.h"
#include "tests/support/test_data.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::sample_options;
using testing::sample_request;
using testing::TempDir;

// Two runs at concurrency 2 (16 and 8 tokens in a second each), a warm-up row, a failed row.
void write_result(const std::filesystem::path& file, bool finished = true) {
  auto options = sample_options(file, 4);
  options.passport.set("job.name", "four, \"tasks\"");
  options.passport.set("checkpoint.path", "/models/Tiny_1");
  options.passport.set("speculative.method", "mtp");
  options.passport.set("speculative.tokens", std::int64_t{2});
  options.passport.set("determinism.level", "batch_invariant");
  ResultWriter writer(std::move(options));
  for (std::int64_t run = 0; run < 2; ++run) {
    GroupRecord group;
    group.concurrency = 2;
    group.run_index = run;
    group.start_s = 0.1;
    if (finished) group.end_s = 1.1;
    writer.submit(group);
  }
  auto warmup = sample_request(3, 100);
  warmup.warmup = true;
  writer.submit(std::move(warmup));
  writer.submit(sample_request(0));
  writer.submit(sample_request(1));
  auto third = sample_request(2);
  third.run_index = 1;
  third.cached_prompt_tokens = 2;
  third.slow_machine = true;
  writer.submit(std::move(third));
  auto failed = sample_request(3, 0);
  failed.run_index = 1;
  failed.finish_reason = FinishReason::kError;
  failed.error_class = "never_fits";
  writer.submit(std::move(failed));
  for (std::int64_t i = 0; i < 2; ++i) {
    StepRecord step;
    step.step = i;
    step.duration_s = 0.010;
    step.output_tokens = 62;
    step.device_compute_s = 0.004;
    writer.submit(step);
  }
  MemoryRow memory;
  for (const std::int64_t bytes : {5, 3, 4}) {
    memory.mem_available_bytes = bytes << 30;
    writer.submit(memory);
  }
  if (finished) writer.finish(ExitCode::kSomeFailed);
}

ResultReport report_of(const std::filesystem::path& file) {
  return make_report(read_result(file, {.steps = true, .samples = true}));
}

template <typename Print, typename What>
std::string printed(Print&& print, const What& what) {
  std::ostringstream out;
  print(out, what);
  return out.str();
}

TEST(Report, NumbersAndTheirConditions) {
  const TempDir dir;
  write_result(dir / "a.h5");
  const auto report = report_of(dir / "a.h5");
  ASSERT_EQ(report.levels.size(), 3u);  // all, cold, warm
  const auto& all = report.levels[0];
  EXPECT_DOUBLE_EQ(all.summary.tokens_per_s.value(), 24.0 / 2);
  EXPECT_DOUBLE_EQ(all.summary.tokens_per_s_min.value(), 8);
  EXPECT_DOUBLE_EQ(all.summary.tokens_per_s_max.value(), 16);
  EXPECT_EQ(all.summary.failed, 1);
  EXPECT_EQ(all.warm_requests, 1);
  EXPECT_EQ(all.slow_machine_requests, 1);
  EXPECT_EQ(all.completion_tokens->max, 8) << "the warm-up row has 100";
  EXPECT_EQ(report.warmup_rows, 1);
  ASSERT_EQ(report.acceptance.size(), 2u);
  EXPECT_EQ(report.acceptance[0].proposed, 12);
  EXPECT_EQ(report.acceptance[0].accepted, 12);
  EXPECT_EQ(report.acceptance[1].accepted, 0);
  EXPECT_EQ(report.failures.at("never_fits"), 1);
  EXPECT_EQ(report.lowest_available_bytes, std::optional<std::int64_t>(std::int64_t{3} << 30));
  const auto& rounds = report.steps.at(StepKind::kRound);
  EXPECT_EQ(rounds.steps, 2);
  EXPECT_NEAR(rounds.device_compute_s.value(), 0.008, 1e-12);
  EXPECT_FALSE(rounds.collective_s.has_value());
}

TEST(Report, TerminalShowsNoNumberWithoutItsConditions) {
  const TempDir dir;
  write_result(dir / "a.h5");
  const auto text = printed(print_terminal, report_of(dir / "a.h5"));
  for (const auto* part : {"four, \"tasks\"", "Tiny_1", "mtp, 2 draft tokens", "batch_invariant",
                           "spark-one", "some_requests_failed", "5 rows of which 1 warm-up",
                           "1 x never_fits", "conc.", "cache", "runs", "12.00", "8.00..16.00",
                           "WARNING: 1 rows", "100.0 % of 12", "lowest MemAvailable 3.00 GiB"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("nan")));
}

TEST(Report, CsvHasOneLineALevelAndEmptyFieldsForMissing) {
  const TempDir dir;
  write_result(dir / "a.h5");
  const auto text = printed(print_csv, std::vector<ResultReport>{report_of(dir / "a.h5")});
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_THAT(lines[0], HasSubstr("concurrency,session,cache"));
  EXPECT_THAT(lines[1], HasSubstr("\"mtp, 2 draft tokens a round\""));
  EXPECT_THAT(lines[1], HasSubstr(",3,3,3,8,8,8,2,0,all,2,4,1,"));
  EXPECT_THAT(lines[2], HasSubstr(",cold,"));
  EXPECT_THAT(lines[2], HasSubstr(",,,,"));  // no wall time, no aggregate speeds
}

TEST(Report, JsonParsesAndHasNullForMissing) {
  const TempDir dir;
  write_result(dir / "a.h5");
  const auto json = nlohmann::json::parse(
      printed(print_json, std::vector<ResultReport>{report_of(dir / "a.h5")}));
  const auto& rows = json.at(0).at("summary");
  EXPECT_EQ(rows.at(0).at("tokens_per_s"), 12.0);
  EXPECT_TRUE(rows.at(1).at("tokens_per_s").is_null());
  EXPECT_EQ(rows.at(2).at("cache"), "warm");
  EXPECT_EQ(json.at(0).at("acceptance_by_position").at(0).at("accepted"), 12);
}

TEST(Report, LatexEscapesAndBalances) {
  const TempDir dir;
  write_result(dir / "under_score.h5");
  const auto text =
      printed(print_latex, std::vector<ResultReport>{report_of(dir / "under_score.h5")});
  EXPECT_THAT(text, HasSubstr("under\\_score.h5"));
  EXPECT_THAT(text, HasSubstr("8.00--16.00"));
  EXPECT_THAT(text, HasSubstr("batch\\_invariant"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '{'), std::count(text.begin(), text.end(), '}'));
}

TEST(Report, MethodsParagraphStatesConditions) {
  const TempDir dir;
  write_result(dir / "a.h5");
  const auto text = printed(print_methods, report_of(dir / "a.h5"));
  for (const auto* part :
       {"At concurrency 2, 4 requests (1 with a warm prefix cache)", "prompts of 3 tokens",
        "completions of 8 tokens", "12.00 completion tokens/s", "2 runs, 8.00 to 16.00 tokens/s",
        "1 requests failed", "1 warm-up rows are left out", "2 MPI ranks"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

// A file whose session was killed has no /summary; the report computes it from the rows.
TEST(Report, KilledRunIsReportedAsSuch) {
  const TempDir dir;
  write_result(dir / "a.h5", false);
  const auto report = report_of(dir / "a.h5");
  ASSERT_FALSE(report.levels.empty());
  // Run 0 until its last token at 0.25, run 1 until 0.35, both from 0.1.
  EXPECT_NEAR(report.levels[0].summary.tokens_per_s.value(), 24 / (0.15 + 0.25), 1e-9);
  EXPECT_THAT(printed(print_terminal, report), HasSubstr("still running, or killed"));
}

TEST(Report, EmptyResult) {
  const TempDir dir;
  { const ResultWriter writer(sample_options(dir / "a.h5", 1)); }
  const auto report = report_of(dir / "a.h5");
  EXPECT_THAT(printed(print_terminal, report), HasSubstr("no counted requests yet"));
  EXPECT_THAT(printed(print_methods, report), Not(HasSubstr("nan")));
}

TEST(ReportCommand, FaultsNameTheFile) {
  const TempDir dir;
  testing::write_text(dir / "notes.h5", "not HDF5");
  ReportOptions options;
  options.files = {(dir / "notes.h5").string()};
  try {
    report_command(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfiguration);
    EXPECT_THAT(error.what(), HasSubstr("notes.h5"));
  }
  options.files = {"a.h5", "b.h5"};
  options.redact_out = "c.h5";
  EXPECT_THROW(report_command(options), Error);
}

TEST(PlotScript, DrawsAPicture) {
  if (std::system("/usr/bin/python3 -c 'import h5py, matplotlib' > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "no h5py and matplotlib for /usr/bin/python3";
  }
  const TempDir dir;
  write_result(dir / "a.h5");
  const auto script = (testing::source_dir() / "scripts/plot_result.py").string();
  ASSERT_EQ(
      std::system(("/usr/bin/python3 -W error " + script + " " + (dir / "a.h5").string()).c_str()),
      0);
  EXPECT_GT(std::filesystem::file_size(dir / "a.png"), 10'000u);
}

}  // namespace
}  // namespace tandem
