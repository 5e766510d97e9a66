#include "cli/in_mpi.h"

#include <cstdio>

#include "base/error.h"
#include "base/log.h"

namespace tandem {

int in_mpi(bool quiet, const std::function<int(MpiEnv&)>& command) {
  MpiEnv mpi(nullptr, nullptr);
  log_configure(mpi.rank(), quiet);
  try {
    return command(mpi);
  } catch (const Error& error) {
    if (error.scope() != ErrorScope::kAllRanks) throw;
    if (mpi.rank() == 0) {
      std::fprintf(stderr, "tandem: error: %s\n", error.what());
      std::fflush(stderr);
    }
    return static_cast<int>(error.code());
  }
}

}  // namespace tandem
