#include "parallel/mpi_env.h"

#include <cstdlib>
#include <exception>

#include "base/log.h"
#include "parallel/mpi_check.h"

namespace tandem {

MpiEnv::MpiEnv(int* argc, char*** argv) : exceptions_at_start_(std::uncaught_exceptions()) {
  int provided = MPI_THREAD_SINGLE;
  TANDEM_CHECK_MPI(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided));
  if (provided < MPI_THREAD_FUNNELED) {
    throw Error(ExitCode::kInternal, {.what = "this MPI library does not allow threads",
                                      .where = mpi_version_text(),
                                      .expected = "MPI_THREAD_FUNNELED",
                                      .remedy = "install an MPI built with thread support"});
  }
  // The default handler kills the process inside the call; ours throws and lets the job save.
  TANDEM_CHECK_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  TANDEM_CHECK_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
  TANDEM_CHECK_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size_));
}

MpiEnv::~MpiEnv() {
  if (abandoned_ || std::uncaught_exceptions() > exceptions_at_start_) return;
  if (MPI_Finalize() != MPI_SUCCESS) log_warning("MPI_Finalize failed");
}

std::string mpi_version_text() {
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(library, &length);
  std::string name(library, static_cast<std::size_t>(length));
  // Open MPI: "Open MPI v4.1.4, package: ..., ident: ..."; MPICH: "MPICH Version: ...\n...".
  name = name.substr(0, name.find_first_of(",\n"));
  int major = 0;
  int minor = 0;
  MPI_Get_version(&major, &minor);
  return fmt::format("{}, MPI {}.{}", name, major, minor);
}

bool started_by_launcher() {
  // Open MPI 4, PMIx launchers (Open MPI 5, srun), PMI launchers (MPICH).
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"}) {
    if (std::getenv(name) != nullptr) return true;
  }
  return false;
}

void mpi_failed(int status, const char* call, const char* file, int line) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw Error(ExitCode::kRankFailure,
              {.what = fmt::format("{} failed: {}", call,
                                   std::string(text, static_cast<std::size_t>(length))),
               .where = fmt::format("{}:{}", file, line),
               .expected = {},
               .remedy = "look for an earlier message of another rank"});
}

}  // namespace tandem
