// A command that runs on all ranks, between MPI_Init and MPI_Finalize.
#pragma once

#include <functional>

#include "parallel/mpi_env.h"

namespace tandem {

// Runs `command` and returns its exit code. An error that all ranks share is told by rank 0 before
// any rank leaves: the launcher ends the others when the first one has gone. Then MPI is shut down
// in order, so that the launcher has nothing to add. Other errors leave as they are.
int in_mpi(bool quiet, const std::function<int(MpiEnv&)>& command);

}  // namespace tandem
