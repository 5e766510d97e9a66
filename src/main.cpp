// The subcommand table; maps an error to its exit code; nothing else.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <variant>

#include "base/error.h"
#include "cli/cli.h"

namespace {

// A closed standard stream gives its number to the next file opened, a result or a socket, and
// every message would be written into that.
void occupy_standard_streams() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd > STDERR_FILENO) ::close(fd);
}

// The rank that the launcher gave this process, before or without MPI; 0 outside a launcher.
bool launched_as_rank_0() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    if (const char* rank = std::getenv(name)) return std::strcmp(rank, "0") == 0;
  }
  return true;
}

int print_error(const std::string& message, tandem::ExitCode code, tandem::ErrorScope scope) {
  if (scope == tandem::ErrorScope::kThisRank || launched_as_rank_0()) {
    std::fprintf(stderr, "tandem: error: %s\n", message.c_str());
  }
  return static_cast<int>(code);
}

int print_text(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return static_cast<int>(tandem::ExitCode::kDone);
}

struct Dispatch {
  int operator()(const tandem::HelpRequest& help) const { return print_text(help.text); }
  int operator()(const tandem::VersionRequest&) const { return print_text(tandem::version_text()); }
  int operator()(const tandem::RunOptions& o) const { return tandem::run_command(o); }
  int operator()(const tandem::PlanOptions& o) const { return tandem::plan_command(o); }
  int operator()(const tandem::ReportOptions& o) const { return tandem::report_command(o); }
  int operator()(const tandem::ReplayOptions& o) const { return tandem::replay_command(o); }
  int operator()(const tandem::InspectOptions& o) const { return tandem::inspect_command(o); }
  int operator()(const tandem::BenchOptions& o) const { return tandem::bench_command(o); }
};

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_streams();
  tandem::CommandLine command_line;
  try {
    command_line = tandem::parse_command_line(argc, argv);
  } catch (const tandem::Error& e) {
    // Every rank has the same command line and the same complaint.
    return print_error(e.what(), e.code(), tandem::ErrorScope::kAllRanks);
  }
  try {
    return std::visit(Dispatch{}, command_line);
  } catch (const tandem::Error& e) {
    return print_error(e.what(), e.code(), e.scope());
  } catch (const std::exception& e) {
    return print_error(e.what(), tandem::ExitCode::kInternal, tandem::ErrorScope::kThisRank);
  }
}
