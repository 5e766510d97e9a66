// Reads a job file: YAML, `extends:` chains, --set overrides, strict types. The only user of
// yaml-cpp.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/job_config.h"

namespace tandem {

struct KeyOrigin {
  std::string key;     // "memory.reserve"
  std::string value;   // as YAML text, "12GiB"
  std::string origin;  // "default", "jobs/smoke.yaml:12" or "--set"
};

struct ResolvedJob {
  JobConfig config;
  std::vector<KeyOrigin> keys;  // every key once, in the order of the table
  std::string resolved_yaml;    // complete, no extends, absolute paths; loads to the same config
  std::string job_file_sha256;  // of the job file's bytes (its bases are in resolved_yaml)
  std::filesystem::path path;   // as given
};

// Reads the job file at `path`. `overrides` are "a.b=value", the last of equal keys wins. Relative
// paths are taken from the directory of the file that sets them; those of overrides, and the
// default output.file, from the current directory. Throws one Error{kConfiguration} that lists
// every problem found with file, line and key.
ResolvedJob load_job(const std::filesystem::path& path,
                     std::span<const std::string> overrides = {});

// The same from text, for a configuration that came by broadcast or out of a passport. `name`
// stands for the file in messages; relative paths are taken from `directory`.
ResolvedJob load_job_text(std::string_view yaml, const std::string& name,
                          const std::filesystem::path& directory,
                          std::span<const std::string> overrides = {});

// output.file with {job} and {time} filled in. `time_utc` comes from rank 0, once for all ranks.
std::string expand_output_file(const JobConfig& config, std::string_view time_utc);

// Aligned listing of key, value and origin.
std::string effective_table(const ResolvedJob& job);

}  // namespace tandem
