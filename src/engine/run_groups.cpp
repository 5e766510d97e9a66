#include "engine/run_groups.h"

namespace tandem {

std::vector<RunGroup> run_groups(const JobConfig& job) {
  if (job.run.mode == RunMode::kBatch) return {{.concurrency = job.scheduler.max_sequences}};
  std::vector<RunGroup> groups;
  for (const int concurrency : job.run.concurrency) {
    for (int i = 0; i < job.run.warmup; ++i) groups.push_back({concurrency, i, true});
    for (int i = 0; i < job.run.repeats; ++i) groups.push_back({concurrency, i, false});
  }
  return groups;
}

}  // namespace tandem
