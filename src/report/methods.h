// The paragraph a paper needs: how the numbers of a result were made, from its passport alone.
#pragma once

#include <ostream>

#include "report/statistics.h"

namespace tandem {

void print_methods(std::ostream& out, const ResultReport& report);

// Model, precision, speculation, ranks, machine, program in one line each; shared with the terminal
// summary. What the passport does not know is left out.
struct ConditionLine {
  std::string name;
  std::string text;
};
std::vector<ConditionLine> condition_lines(const ResultReport& report);

}  // namespace tandem
