#include "output/passport.h"

#include <fmt/ranges.h>
#include <gnu/libc-version.h>
#include <pwd.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "base/build_info.h"
#include "base/clock.h"
#include "output/h5_handle.h"

extern "C" char** environ;

namespace tandem {
namespace {

constexpr std::array<std::string_view, 7> kEnvironmentPrefixes = {
    "NCCL_", "UCX_", "OMPI_", "PRTE_", "CUDA_", "OMP_", "TANDEM_"};

// The value behind "key<spaces>:" or "key=" in a small text file of the system; empty if none.
std::string value_in_file(const char* path, std::string_view key, char separator) {
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    if (!line.starts_with(key)) continue;
    const auto at = line.find(separator);
    if (at == std::string::npos) continue;
    auto value = line.substr(at + 1);
    value.erase(0, value.find_first_not_of(" \t\""));
    value.erase(value.find_last_not_of(" \t\"") + 1);
    return value;
  }
  return {};
}

std::string cpu_model() {
  // Arm kernels print implementer and part numbers instead of a name.
  for (const auto* key : {"model name", "Model", "Hardware", "CPU part"}) {
    auto value = value_in_file("/proc/cpuinfo", key, ':');
    if (!value.empty()) return value;
  }
  return {};
}

std::string user_name() {
  const auto* entry = ::getpwuid(::geteuid());
  return entry != nullptr ? entry->pw_name : "";
}

}  // namespace

std::string Passport::text(std::string_view key) const {
  const auto found = values_.find(std::string(key));
  if (found == values_.end()) return {};
  struct Printer {
    std::string operator()(const std::string& value) const { return value; }
    std::string operator()(std::int64_t value) const { return fmt::format("{}", value); }
    std::string operator()(double value) const { return fmt::format("{}", value); }
    std::string operator()(const std::vector<std::string>& value) const {
      return fmt::format("{}", fmt::join(value, ", "));
    }
  };
  return std::visit(Printer{}, found->second);
}

std::string_view exit_status_text(ExitCode code) {
  switch (code) {
    case ExitCode::kDone:
      return "done";
    case ExitCode::kInternal:
      return "internal_error";
    case ExitCode::kConfiguration:
      return "configuration";
    case ExitCode::kPrompts:
      return "prompts";
    case ExitCode::kDoesNotFit:
      return "does_not_fit";
    case ExitCode::kTransport:
      return "transport";
    case ExitCode::kRankFailure:
      return "rank_failure";
    case ExitCode::kMemoryWatchdog:
      return "memory_watchdog";
    case ExitCode::kSomeFailed:
      return "some_requests_failed";
    case ExitCode::kInterrupted:
      return "interrupted";
  }
  return "internal_error";
}

std::vector<std::string> command_line() {
  std::ifstream in("/proc/self/cmdline");
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(in, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

Passport gather_host_passport() {
  Passport p;
  std::vector<std::string> missing;
  const auto set_if_known = [&](std::string_view key, const std::string& value) {
    if (value.empty()) {
      missing.emplace_back(key);
    } else {
      p.set(key, value);
    }
  };
  utsname system{};
  if (::uname(&system) == 0) {
    p.set("host", system.nodename);
    p.set("kernel", fmt::format("{} {}", system.sysname, system.release));
    p.set("architecture", system.machine);
  } else {
    missing.insert(missing.end(), {"host", "kernel", "architecture"});
  }
  set_if_known("user", user_name());
  set_if_known("os_release", value_in_file("/etc/os-release", "PRETTY_NAME", '='));
  set_if_known("cpu_model", cpu_model());
  p.set("logical_cpus", std::int64_t{::sysconf(_SC_NPROCESSORS_ONLN)});
  set_if_known("memory_total", value_in_file("/proc/meminfo", "MemTotal", ':'));
  p.set("libc", fmt::format("glibc {}", gnu_get_libc_version()));

  const auto& build = build_info();
  p.set("program_version", build.version);
  p.set("git_revision", build.git_revision);
  p.set("compiler", build.compiler);
  p.set("compiler_flags", build.flags);
  p.set("build_type", build.build_type);
  p.set("hdf5_version", hdf5_version_text());
  p.set("start_utc", utc_now_iso8601());

  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    for (const auto prefix : kEnvironmentPrefixes) {
      if (!text.starts_with(prefix)) continue;
      p.set(fmt::format("env.{}", text.substr(0, equals)), text.substr(equals + 1));
      break;
    }
  }
  p.set("missing_facts", missing);
  return p;
}

}  // namespace tandem
