// How a result was made: named attributes of /passport. This file owns the container and the facts
// that can be read from the host; callers add what they know (configuration, checkpoint,
// transport).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/exit_code.h"

namespace tandem {

class Passport {
 public:
  using Value = std::variant<std::string, std::int64_t, double, std::vector<std::string>>;

  void set(std::string_view key, std::string_view value) {
    values_[std::string(key)] = std::string(value);
  }
  void set(std::string_view key, std::int64_t value) { values_[std::string(key)] = value; }
  void set(std::string_view key, double value) { values_[std::string(key)] = value; }
  void set(std::string_view key, std::vector<std::string> value) {
    values_[std::string(key)] = std::move(value);
  }
  // The text of an attribute as a person would write it; empty when absent.
  std::string text(std::string_view key) const;
  bool has(std::string_view key) const { return values_.contains(std::string(key)); }
  const std::map<std::string, Value>& values() const { return values_; }

 private:
  std::map<std::string, Value> values_;
};

// "done", "internal_error", ...: the exit status as files have it.
std::string_view exit_status_text(ExitCode code);

// This process's program and arguments; empty if they cannot be read.
std::vector<std::string> command_line();

// Facts of this host and this program: host name, user, CPU, logical CPUs, memory, kernel, OS
// release, libc, program version, git revision, compiler, flags, HDF5 version, start time (UTC),
// and one "env.NAME" for each environment variable starting NCCL_, UCX_, OMPI_MCA_, CUDA_, OMP_ or
// TANDEM_. Facts that cannot be read are left out and named in `missing_facts`.
Passport gather_host_passport();

}  // namespace tandem
