// The command line: grammar, help texts, and what was asked for. Runs nothing itself.
#pragma once

#include <string>
#include <variant>

#include "cli/commands.h"

namespace tandem {

struct HelpRequest {
  std::string text;
};
struct VersionRequest {};

using CommandLine = std::variant<HelpRequest, VersionRequest, RunOptions, PlanOptions,
                                 ReportOptions, ReplayOptions, InspectOptions, BenchOptions>;

// Throws Error{kConfiguration} for a usage error, naming the argument and the help to read.
CommandLine parse_command_line(int argc, const char* const* argv);

// Several lines: version, git revision, compiler, backends, GPU targets, library versions.
std::string version_text();

}  // namespace tandem
