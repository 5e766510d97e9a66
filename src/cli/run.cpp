// `tandem run`: options to the job. An error that all ranks share leaves only after MPI has been
// shut down in order, so that the launcher has nothing to add to it.
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands.h"
#include "engine/job_run.h"
#include "parallel/mpi_env.h"

namespace tandem {

int run_command(const RunOptions& options) {
  std::optional<Error> shared_error;
  int code = 0;
  {
    MpiEnv mpi(nullptr, nullptr);
    log_configure(mpi.rank(), options.quiet);
    try {
      code = run_job(mpi, {.job_file = options.job_file,
                           .overrides = run_overrides(options),
                           .resume = options.resume,
                           .overwrite = options.overwrite,
                           .dry_run = options.dry_run,
                           .quiet = options.quiet,
                           .skip_bad_prompts = options.skip_bad_prompts,
                           .hash_weights = options.hash_weights});
    } catch (const Error& error) {
      if (error.scope() != ErrorScope::kAllRanks) throw;
      shared_error = error;
    }
  }
  if (shared_error) throw *shared_error;
  return code;
}

}  // namespace tandem
