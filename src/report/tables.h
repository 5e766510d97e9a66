// A report as text: for the terminal, and as CSV, JSON and LaTeX tables. Every form carries the
// conditions of each number beside it: concurrency, cache state, lengths, requests, runs and
// spread.
#pragma once

#include <ostream>
#include <vector>

#include "report/statistics.h"

namespace tandem {

void print_terminal(std::ostream& out, const ResultReport& report);
// One line a summary row of each file, with a header line. Missing values are empty fields.
void print_csv(std::ostream& out, const std::vector<ResultReport>& reports);
// One array of reports. Missing values are null.
void print_json(std::ostream& out, const std::vector<ResultReport>& reports);
// One tabular (booktabs) over all files; the caption carries what the columns do not.
void print_latex(std::ostream& out, const std::vector<ResultReport>& reports);

}  // namespace tandem
