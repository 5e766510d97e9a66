// The command line: what each form of it asks for, and that a usage error is one, with code 2.
#include "cli/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "tandem");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

template <typename Options>
Options parse_as(const std::vector<const char*>& arguments) {
  return std::get<Options>(parse(arguments));
}

std::string usage_error(const std::vector<const char*>& arguments) {
  try {
    parse(arguments);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfiguration);
    return e.what();
  }
  ADD_FAILURE() << "no usage error";
  return "";
}

std::string help_of(const std::vector<const char*>& arguments) {
  return parse_as<HelpRequest>(arguments).text;
}

TEST(Cli, RunDefaults) {
  const auto o = parse_as<RunOptions>({"run", "a.yaml"});
  EXPECT_EQ(o.job_file, "a.yaml");
  EXPECT_THAT(o.overrides, IsEmpty());
  EXPECT_FALSE(o.output.has_value());
  EXPECT_FALSE(o.resume || o.dry_run || o.quiet || o.overwrite || o.skip_bad_prompts ||
               o.hash_weights);
}

TEST(Cli, RunTakesEveryOption) {
  const auto o =
      parse_as<RunOptions>({"run", "--resume", "--output", "o.h5", "--dry-run", "--quiet",
                            "--skip-bad-prompts", "--hash-weights", "a.yaml"});
  EXPECT_TRUE(o.resume && o.dry_run && o.quiet && o.skip_bad_prompts && o.hash_weights);
  EXPECT_EQ(o.output, "o.h5");
  EXPECT_TRUE(parse_as<RunOptions>({"run", "a.yaml", "--overwrite"}).overwrite);
}

// --set takes one value, so that the job file may come after it.
TEST(Cli, SetIsRepeatableAndLeavesTheJobFileAlone) {
  const auto o = parse_as<RunOptions>(
      {"run", "--set", "a.b=1", "--set=c.d=[1, 2]", "job.yaml", "--set", "e=f=g"});
  EXPECT_EQ(o.job_file, "job.yaml");
  EXPECT_THAT(o.overrides, ElementsAre("a.b=1", "c.d=[1, 2]", "e=f=g"));
}

TEST(Cli, OutputBecomesTheLastOverride) {
  const auto o =
      parse_as<RunOptions>({"run", "--output", "x.h5", "j.yaml", "--set", "output.file=y.h5"});
  EXPECT_THAT(run_overrides(o), ElementsAre("output.file=y.h5", "output.file=x.h5"));
}

TEST(Cli, Plan) {
  const auto o = parse_as<PlanOptions>(
      {"plan", "a.yaml", "--np", "2", "--mem-available", "119GiB", "--set", "x=1"});
  EXPECT_EQ(o.np, 2);
  EXPECT_EQ(o.mem_available_bytes, std::int64_t{119} << 30);
  EXPECT_THAT(o.overrides, ElementsAre("x=1"));
  EXPECT_FALSE(parse_as<PlanOptions>({"plan", "a.yaml"}).mem_available_bytes.has_value());
}

TEST(Cli, Report) {
  const auto o = parse_as<ReportOptions>({"report", "a.h5", "b.h5", "--latex"});
  EXPECT_THAT(o.files, ElementsAre("a.h5", "b.h5"));
  EXPECT_TRUE(o.latex);
  EXPECT_FALSE(o.csv || o.json || o.methods);
  EXPECT_EQ(parse_as<ReportOptions>({"report", "--redact", "o.h5", "a.h5"}).redact_out, "o.h5");
}

TEST(Cli, Replay) {
  const auto o = parse_as<ReplayOptions>({"replay", "a.h5", "--sample", "5", "--seed",
                                          "18446744073709551615", "--set", "model.path=m"});
  EXPECT_EQ(o.file, "a.h5");
  EXPECT_EQ(o.sample, 5);
  EXPECT_EQ(o.seed, 18446744073709551615u);
  EXPECT_THAT(o.overrides, ElementsAre("model.path=m"));
  EXPECT_EQ(parse_as<ReplayOptions>({"replay", "a.h5"}).sample, 20);
}

TEST(Cli, InspectManifestImpliesVerify) {
  EXPECT_FALSE(parse_as<InspectOptions>({"inspect", "dir"}).verify);
  const auto o = parse_as<InspectOptions>({"inspect", "dir", "--manifest", "SUMS", "--np", "4"});
  EXPECT_TRUE(o.verify);
  EXPECT_EQ(o.manifest, "SUMS");
  EXPECT_EQ(o.np, 4);
}

TEST(Cli, BenchSaysWhichAndWhatOf) {
  const auto memory = parse_as<BenchOptions>({"bench", "memory"});
  EXPECT_EQ(memory.kind, BenchKind::kMemory);
  EXPECT_EQ(memory.backend, "auto");
  EXPECT_FALSE(memory.bytes.has_value() || memory.json || memory.output || memory.overwrite);
  const auto gemm =
      parse_as<BenchOptions>({"bench", "gemm", "--backend", "cpu", "--format", "bf16,nvfp4",
                              "--shape", "64x32", "--rows", "1,16", "--json"});
  EXPECT_EQ(gemm.kind, BenchKind::kGemm);
  EXPECT_EQ(gemm.backend, "cpu");
  EXPECT_THAT(gemm.formats, ElementsAre("bf16", "nvfp4"));
  EXPECT_THAT(gemm.shapes, ElementsAre("64x32"));
  EXPECT_THAT(gemm.rows, ElementsAre(1, 16));
  EXPECT_TRUE(gemm.json);
  const auto collective = parse_as<BenchOptions>({"bench", "collective", "--max-bytes", "1MiB"});
  EXPECT_EQ(collective.kind, BenchKind::kCollective);
  EXPECT_EQ(collective.bytes, 1 << 20);
  for (const char* kind : {"memory", "gemm", "collective"}) {
    const auto o = parse_as<BenchOptions>({"bench", kind, "--output", "o.h5", "--overwrite"});
    EXPECT_EQ(o.output, "o.h5");
    EXPECT_TRUE(o.overwrite);
    EXPECT_THAT(usage_error({"bench", kind, "--overwrite"}), HasSubstr("--output"));
  }
}

TEST(Cli, VersionNeedsNoCommand) {
  EXPECT_TRUE(std::holds_alternative<VersionRequest>(parse({"--version"})));
}

TEST(Cli, HelpNamesEveryCommandAndOption) {
  const auto top = help_of({"--help"});
  for (const char* word :
       {"run", "plan", "report", "replay", "inspect", "bench", "--version", "Exit codes"}) {
    EXPECT_THAT(top, HasSubstr(word));
  }
  const auto run = help_of({"run", "--help"});
  for (const char* word : {"--set", "--resume", "--output", "--dry-run", "--quiet", "--overwrite",
                           "--skip-bad-prompts", "--hash-weights", "memory.reserve", "12GiB"}) {
    EXPECT_THAT(run, HasSubstr(word));
  }
  EXPECT_THAT(help_of({"plan", "-h"}), HasSubstr("--mem-available"));
  EXPECT_THAT(help_of({"report", "--help"}), HasSubstr("--redact"));
  EXPECT_THAT(help_of({"replay", "--help"}), HasSubstr("--sample"));
  EXPECT_THAT(help_of({"inspect", "--help"}), HasSubstr("--manifest"));
  EXPECT_THAT(help_of({"bench", "--help"}), HasSubstr("collective"));
  EXPECT_THAT(help_of({"bench", "gemm", "--help"}), HasSubstr("--shape"));
}

TEST(Cli, UsageErrors) {
  EXPECT_THAT(usage_error({}), HasSubstr("no command; expected one of run, plan"));
  EXPECT_THAT(usage_error({"rum", "a.yaml"}), HasSubstr("unknown command 'rum'"));
  EXPECT_THAT(usage_error({"--frobnicate"}), HasSubstr("--frobnicate"));
  EXPECT_THAT(usage_error({"run"}), HasSubstr("run: job is required"));
  EXPECT_THAT(usage_error({"run", "a.yaml", "b.yaml"}), HasSubstr("b.yaml"));
  EXPECT_THAT(usage_error({"run", "a.yaml", "--fast"}), HasSubstr("see 'tandem run --help'"));
  EXPECT_THAT(usage_error({"run", "a.yaml", "--set"}), HasSubstr("--set"));
  EXPECT_THAT(usage_error({"run", "a.yaml", "--resume", "--overwrite"}), HasSubstr("--resume"));
  EXPECT_THAT(usage_error({"plan", "a.yaml", "--np", "0"}), HasSubstr("--np"));
  EXPECT_THAT(usage_error({"bench"}), HasSubstr("bench: A subcommand is required"));
  EXPECT_THAT(usage_error({"bench", "memory", "--bytes", "2GB"}), HasSubstr("2GB"));
  EXPECT_THAT(usage_error({"bench", "gemm", "--rows", "0"}), HasSubstr("--rows"));
  EXPECT_THAT(usage_error({"bench", "memory", "--backend", "gpu"}), HasSubstr("--backend"));
  EXPECT_THAT(usage_error({"plan", "a.yaml", "--np", "two"}), HasSubstr("--np"));
  EXPECT_THAT(usage_error({"plan", "a.yaml", "--mem-available", "12GB"}), HasSubstr("12GB"));
  EXPECT_THAT(usage_error({"report"}), HasSubstr("files is required"));
  EXPECT_THAT(usage_error({"report", "a.h5", "--csv", "--json"}), HasSubstr("report: "));
  EXPECT_THAT(usage_error({"replay", "a.h5", "--sample", "0"}), HasSubstr("--sample"));
  EXPECT_THAT(usage_error({"replay", "a.h5", "--seed", "-1"}), HasSubstr("--seed"));
  EXPECT_THAT(usage_error({"run", "a.yaml", "plan", "b.yaml"}), HasSubstr("plan"));
}

}  // namespace
}  // namespace tandem
