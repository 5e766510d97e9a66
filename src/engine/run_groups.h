// What a job runs, in order: in batch mode all requests once at full concurrency; in bench mode a
// sweep over concurrency levels, each with its warm-up runs and repeats.
#pragma once

#include <vector>

#include "config/job_config.h"

namespace tandem {

struct RunGroup {
  int concurrency = 1;
  int run_index = 0;  // within the level; warm-up runs and counted runs are numbered apart
  bool warmup = false;
};

std::vector<RunGroup> run_groups(const JobConfig& job);

}  // namespace tandem
