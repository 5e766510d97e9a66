// The subcommands and what each takes from the command line. Every <name>_command lives in
// cli/<name>.cpp, returns the process exit code, and reports failures by throwing Error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tandem {

struct RunOptions {
  std::string job_file;
  std::vector<std::string> overrides;  // "a.b=value" of each --set, in order
  bool resume = false;
  std::optional<std::string> output;  // replaces output.file; see run_overrides()
  bool dry_run = false;
  bool quiet = false;
  bool overwrite = false;
  bool skip_bad_prompts = false;
  bool hash_weights = false;
};

struct PlanOptions {
  std::string job_file;
  std::vector<std::string> overrides;
  int np = 1;
  // MemAvailable of the machine planned for; empty: that of this one.
  std::optional<std::int64_t> mem_available_bytes;
};

struct ReportOptions {
  std::vector<std::string> files;
  bool csv = false;
  bool json = false;
  bool latex = false;
  bool methods = false;
  std::optional<std::string> redact_out;  // only with exactly one file
};

struct ReplayOptions {
  std::string file;
  int sample = 20;
  std::uint64_t seed = 0;  // of the choice of the sample
  std::vector<std::string> overrides;
};

struct InspectOptions {
  std::string checkpoint;
  bool verify = false;
  std::optional<std::string> manifest;  // sha256sum format; implies verify
  int np = 1;
};

enum class BenchKind { kMemory, kGemm, kCollective };

struct BenchOptions {
  BenchKind kind = BenchKind::kMemory;
  std::string backend = "auto";  // auto, cpu, cuda
  int threads = 0;               // of the CPU backend; 0: this rank's share of the host
  // memory: of each array; collective: the largest message. Empty: what suits the backend.
  std::optional<std::int64_t> bytes;
  // gemm; empty: what suits the backend.
  std::vector<std::string> formats;  // "bf16", "fp8_block", ...
  std::vector<std::string> shapes;   // "17408x5120"
  std::vector<int> rows;
  bool json = false;
  std::optional<std::string> output;  // result file, beside what is printed
  bool overwrite = false;
};

int run_command(const RunOptions& options);
int plan_command(const PlanOptions& options);
int report_command(const ReportOptions& options);
int replay_command(const ReplayOptions& options);
int inspect_command(const InspectOptions& options);
int bench_command(const BenchOptions& options);

// The overrides of --set with --output appended as output.file, ready for load_job().
std::vector<std::string> run_overrides(const RunOptions& options);

}  // namespace tandem
