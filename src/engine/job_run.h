// `tandem run`: one job from its file to its exit code, the same program on every rank.
#pragma once

#include <string>
#include <vector>

#include "parallel/mpi_env.h"

namespace tandem {

struct JobRunOptions {
  std::string job_file;
  std::vector<std::string> overrides;  // "a.b=value"
  bool resume = false;
  bool overwrite = false;
  bool dry_run = false;
  bool quiet = false;
  bool skip_bad_prompts = false;
  bool hash_weights = false;
};

// Returns the exit code. Errors of the start-up, which all ranks share, are thrown on all ranks;
// a failure of one rank while the job runs ends the process (rank_guard.h).
int run_job(MpiEnv& mpi, const JobRunOptions& options);

}  // namespace tandem
