// `tandem replay`.
#include "cli/commands.h"
#include "cli/in_mpi.h"
#include "engine/job_replay.h"

namespace tandem {

int replay_command(const ReplayOptions& options) {
  return in_mpi(false, [&](MpiEnv& mpi) {
    return replay_job(mpi, {.file = options.file,
                            .sample = options.sample,
                            .seed = options.seed,
                            .overrides = options.overrides});
  });
}

}  // namespace tandem
