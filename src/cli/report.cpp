// tandem report: what a result file says, for people, spreadsheets and papers.
#include <fmt/format.h>

#include <iostream>

#include "base/error.h"
#include "bench/bench_rows.h"
#include "cli/commands.h"
#include "output/bench_file.h"
#include "output/redact.h"
#include "output/result_reader.h"
#include "report/methods.h"
#include "report/statistics.h"
#include "report/tables.h"

namespace tandem {

int report_command(const ReportOptions& options) {
  if (options.redact_out) {
    if (options.files.size() != 1) {
      throw Error(ExitCode::kConfiguration,
                  {.what = fmt::format("--redact with {} files", options.files.size()),
                   .expected = "exactly one file to copy"});
    }
    redact_result(options.files.front(), *options.redact_out);
    fmt::print(stderr,
               "tandem: {} written; prompts, completions and request ids are as in the original\n",
               *options.redact_out);
  }
  const bool tables = options.csv || options.json || options.latex || options.methods;
  if (options.redact_out && !tables) return static_cast<int>(ExitCode::kDone);

  std::vector<ResultReport> reports;
  for (const auto& file : options.files) {
    if (!tables && is_bench_file(file)) {
      std::cout << contents_text(read_bench_file(file));
      continue;
    }
    reports.push_back(make_report(read_result(file, {.steps = true, .samples = true})));
  }
  if (options.csv) print_csv(std::cout, reports);
  if (options.json) print_json(std::cout, reports);
  if (options.latex) print_latex(std::cout, reports);
  for (const auto& report : reports) {
    if (options.methods) print_methods(std::cout, report);
    if (!tables) print_terminal(std::cout, report);
  }
  std::cout.flush();
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace tandem
