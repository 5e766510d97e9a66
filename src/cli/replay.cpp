// `tandem replay`.
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "cli/commands.h"
#include "engine/job_replay.h"
#include "parallel/mpi_env.h"

namespace tandem {

int replay_command(const ReplayOptions& options) {
  std::optional<Error> shared_error;
  int code = 0;
  {
    MpiEnv mpi(nullptr, nullptr);
    log_configure(mpi.rank(), false);
    try {
      code = replay_job(mpi, {.file = options.file,
                              .sample = options.sample,
                              .seed = options.seed,
                              .overrides = options.overrides});
    } catch (const Error& error) {
      if (error.scope() != ErrorScope::kAllRanks) throw;
      shared_error = error;
    }
  }
  if (shared_error) throw *shared_error;
  return code;
}

}  // namespace tandem
