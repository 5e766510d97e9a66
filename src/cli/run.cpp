// `tandem run`: options to the job.
#include "cli/commands.h"
#include "cli/in_mpi.h"
#include "engine/job_run.h"

namespace tandem {

int run_command(const RunOptions& options) {
  return in_mpi(options.quiet, [&](MpiEnv& mpi) {
    return run_job(mpi, {.job_file = options.job_file,
                         .overrides = run_overrides(options),
                         .resume = options.resume,
                         .overwrite = options.overwrite,
                         .dry_run = options.dry_run,
                         .quiet = options.quiet,
                         .skip_bad_prompts = options.skip_bad_prompts,
                         .hash_weights = options.hash_weights});
  });
}

}  // namespace tandem
