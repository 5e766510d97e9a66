#include "cli/cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/units.h"
#include "config/job_keys.h"

namespace tandem {
namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 done; 1 defect or I/O failure; 2 usage or configuration; 3 prompt file; 4 does "
    "not\n"
    "fit; 5 transport policy; 6 rank failure, stall or divergence; 7 stopped by the memory "
    "watchdog;\n"
    "8 some requests failed; 130 interrupted.";

constexpr const char* kExamples =
    "Examples:\n"
    "  tandem run jobs/smoke.yaml\n"
    "  mpirun -np 2 --hostfile hostfiles/spark.hosts tandem run jobs/four_tasks.yaml\n"
    "  tandem plan jobs/four_tasks.yaml --np 2\n"
    "  tandem report results/smoke.h5 --methods\n"
    "  mpirun -np 2 tandem bench collective\n\n";

void add_overrides(CLI::App& command, std::vector<std::string>& overrides) {
  command
      .add_option("--set", overrides,
                  "Override a key of the job file, as in --set sampling.seed=7. Repeatable; the "
                  "last of equal keys wins. Relative paths start at the current directory")
      ->type_name("KEY=VALUE")
      // One value each: the job file may follow.
      ->allow_extra_args(false);
}

void add_job_file(CLI::App& command, std::string& job_file) {
  command.add_option("job", job_file, "Job file (YAML)")->required()->type_name("JOB.yaml");
}

std::int64_t size_argument(const char* option, const std::string& text, const char* example) {
  const auto bytes = parse_bytes(text);
  if (!bytes || *bytes == 0) {
    throw CLI::ValidationError(option, fmt::format("'{}' is not a size like {}", text, example));
  }
  return *bytes;
}

void add_run(CLI::App& app, RunOptions& o) {
  auto& c = *app.add_subcommand("run", "Run a job; under mpirun, on all ranks");
  add_job_file(c, o.job_file);
  add_overrides(c, o.overrides);
  auto* resume =
      c.add_flag("--resume", o.resume,
                 "Continue an interrupted result file: skip what is complete. Refused if "
                 "anything that can change a token differs");
  c.add_option("--output", o.output, "Result file, instead of output.file")->type_name("FILE.h5");
  c.add_flag("--overwrite", o.overwrite, "Replace an existing result file")->excludes(resume);
  c.add_flag("--dry-run", o.dry_run, "Do everything up to the first token, then stop");
  c.add_flag("--quiet", o.quiet, "Only warnings and errors");
  c.add_flag("--skip-bad-prompts", o.skip_bad_prompts,
             "Record invalid lines of the prompt file as failed requests and run the rest");
  c.add_flag("--hash-weights", o.hash_weights,
             "Put a full hash of every checkpoint file into the passport (reads them all)");
  c.footer(job_schema_help() + "\n" + kExitCodes);
}

void add_plan(CLI::App& app, PlanOptions& o) {
  auto& c = *app.add_subcommand(
      "plan",
      "Memory per rank and expected speed, from checkpoint headers alone; exit code 4 if "
      "the job does not fit");
  add_job_file(c, o.job_file);
  add_overrides(c, o.overrides);
  c.add_option("--np", o.np, "Number of ranks")->check(CLI::Range(1, 4096))->capture_default_str();
  c.add_option_function<std::string>(
       "--mem-available",
       [&o](const std::string& text) {
         o.mem_available_bytes = size_argument("--mem-available", text, "119GiB");
       },
       "MemAvailable of the host planned for, 119GiB say; without it, that of this host")
      ->type_name("SIZE");
  c.footer(job_schema_help());
}

void add_report(CLI::App& app, ReportOptions& o) {
  auto& c = *app.add_subcommand("report", "Summarize result files; one format at a time");
  c.add_option("files", o.files, "Result files")->required()->type_name("FILE.h5");
  auto& formats = *c.add_option_group("Format");
  formats.add_flag("--csv", o.csv, "Comma-separated table");
  formats.add_flag("--json", o.json, "JSON");
  formats.add_flag("--latex", o.latex, "LaTeX table");
  formats.add_flag("--methods", o.methods, "The paragraph that a paper needs");
  formats
      .add_option("--redact", o.redact_out,
                  "Write a copy without host names, users, addresses and paths, to be shared")
      ->type_name("OUT.h5");
  formats.require_option(0, 1);
}

void add_replay(CLI::App& app, ReplayOptions& o) {
  auto& c =
      *app.add_subcommand("replay",
                          "Run a random sample of a result file's requests again, from its own "
                          "passport, and compare the tokens");
  c.add_option("file", o.file, "Result file")->required()->type_name("FILE.h5");
  c.add_option("--sample", o.sample, "Number of requests")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  c.add_option("--seed", o.seed, "Seed of the choice of the sample")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  add_overrides(c, o.overrides);
  c.footer(kExitCodes);
}

void add_inspect(CLI::App& app, InspectOptions& o) {
  auto& c = *app.add_subcommand("inspect", "Describe a checkpoint, and check it");
  c.add_option("checkpoint", o.checkpoint, "Checkpoint directory")->required()->type_name("DIR");
  c.add_flag("--verify", o.verify,
             "Check that every shard is whole and every indexed tensor exists exactly once");
  c.add_option("--manifest", o.manifest, "Check the files' hashes against a sha256sum list too")
      ->type_name("FILE");
  c.add_option("--np", o.np, "Show how tensors are sharded over so many ranks")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
}

CLI::App& add_bench_kind(CLI::App& bench, BenchOptions& o, BenchKind kind, const char* name,
                         const char* description) {
  auto& c = *bench.add_subcommand(name, description);
  c.parse_complete_callback([&o, kind] { o.kind = kind; });
  c.add_option("--backend", o.backend, "Which backend to measure")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  c.add_option("--threads", o.threads,
               "Threads of the CPU backend; 0: OMP_NUM_THREADS, or this rank's share of the cores")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  c.add_flag("--json", o.json, "JSON instead of a table");
  auto* output = c.add_option("--output", o.output,
                              "Result file (HDF5), beside what is printed; see results/README.md")
                     ->type_name("FILE.h5");
  c.add_flag("--overwrite", o.overwrite, "Replace an existing result file")->needs(output);
  c.footer("Exit code 1 when a result was wrong.");
  return c;
}

void add_bench(CLI::App& app, BenchOptions& o) {
  auto& bench = *app.add_subcommand(
      "bench", "Micro-benchmarks of what bounds a job; under mpirun, on all ranks");
  bench.require_subcommand(1);
  auto& memory = add_bench_kind(bench, o, BenchKind::kMemory, "memory",
                                "Bandwidth of the backend's memory: read, write, copy, add");
  memory
      .add_option_function<std::string>(
          "--bytes",
          [&o](const std::string& text) { o.bytes = size_argument("--bytes", text, "2GiB"); },
          "Size of each of three arrays; 2GiB on a GPU, 256MiB on a CPU when not given")
      ->type_name("SIZE");
  auto& gemm = add_bench_kind(
      bench, o, BenchKind::kGemm, "gemm",
      "Linears of a model's shapes by weight format and rows, against the measured bandwidth and "
      "matrix rate");
  gemm.add_option("--format", o.formats,
                  "Weight formats: bf16, f32, fp8_block, fp8_tensor, fp8_channel, nvfp4, mxfp4, "
                  "int8_channel, int8_group, or all; bf16, fp8_block and nvfp4 when not given")
      ->delimiter(',')
      ->type_name("NAME[,NAME]");
  gemm.add_option("--shape", o.shapes,
                  "Outputs x inputs, as in 17408x5120; the linears of Qwen3.8-27B when not given")
      ->delimiter(',')
      ->type_name("NxK[,NxK]");
  gemm.add_option("--rows", o.rows,
                  "Rows of x; 1,2,4,8,16,32,64 and, on a GPU, 2048 when not given")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 16))
      ->type_name("M[,M]");
  auto& collective =
      add_bench_kind(bench, o, BenchKind::kCollective, "collective",
                     "All-reduce and all-gather over the ranks, by size, with the sums checked");
  collective
      .add_option_function<std::string>(
          "--max-bytes",
          [&o](const std::string& text) { o.bytes = size_argument("--max-bytes", text, "1GiB"); },
          "Largest message; 1GiB on GPUs, 64MiB on CPUs when not given")
      ->type_name("SIZE");
}

// "unknown command 'rum'" says more than CLI11's list of unexpected arguments.
std::string usage_problem(const CLI::App& app, const CLI::ParseError& error, int argc,
                          const char* const* argv) {
  const auto chosen = app.get_subcommands();
  if (!chosen.empty()) return fmt::format("{}: {}", chosen.front()->get_name(), error.what());
  if (argc > 1 && argv[1][0] != '-') return fmt::format("unknown command '{}'", argv[1]);
  return argc > 1 ? error.what() : "no command";
}

std::string command_names(const CLI::App& app) {
  std::string names;
  for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return names;
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  RunOptions run;
  PlanOptions plan;
  ReportOptions report;
  ReplayOptions replay;
  InspectOptions inspect;
  BenchOptions bench;

  CLI::App app("Tandem: offline LLM inference as an MPI batch job, with results in HDF5.",
               "tandem");
  app.get_formatter()->column_width(36);
  app.set_help_flag("-h,--help", "Print this help; 'tandem COMMAND --help' for that of a command");
  bool version = false;
  app.add_flag("--version", version, "Print version, build and library versions");
  app.require_subcommand(0, 1);
  app.footer(std::string(kExamples) + kExitCodes);
  add_run(app, run);
  add_plan(app, plan);
  add_report(app, report);
  add_replay(app, replay);
  add_inspect(app, inspect);
  add_bench(app, bench);

  const auto refuse = [&](const std::string& what) {
    const auto chosen = app.get_subcommands();
    throw Error(ExitCode::kConfiguration,
                {.what = what,
                 .where = "",
                 .expected = chosen.empty() ? "one of " + command_names(app) : "",
                 .remedy = fmt::format("see 'tandem{} --help'",
                                       chosen.empty() ? "" : " " + chosen.front()->get_name())});
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return HelpRequest{app.help()};
  } catch (const CLI::ParseError& error) {
    refuse(usage_problem(app, error, argc, argv));
  }
  if (version) return VersionRequest{};
  if (app.get_subcommands().empty()) refuse("no command");

  const auto& name = app.get_subcommands().front()->get_name();
  if (name == "run") return run;
  if (name == "plan") return plan;
  if (name == "report") return report;
  if (name == "replay") return replay;
  if (name == "bench") return bench;
  TANDEM_CHECK(name == "inspect", "command {}", name);
  inspect.verify = inspect.verify || inspect.manifest.has_value();
  return inspect;
}

std::vector<std::string> run_overrides(const RunOptions& options) {
  auto overrides = options.overrides;
  if (options.output) overrides.push_back("output.file=" + *options.output);
  return overrides;
}

}  // namespace tandem
