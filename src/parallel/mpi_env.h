// The MPI library's lifetime: initialized by the first local of a rank program, so ended last.
// Ranks and hosts of the world communicator; communication itself is HostComm's.
#pragma once

#include <string>

namespace tandem {

// Works under mpirun and as a single process without it. MPI calls are made by the constructing
// thread only (MPI_THREAD_FUNNELED); other threads may exist.
class MpiEnv {
 public:
  // Throws Error{kInternal} if MPI cannot be initialized.
  MpiEnv(int* argc, char*** argv);
  // MPI_Finalize waits for every peer, so it is left out after abandon() and while an exception is
  // in flight: then somebody may be gone and the wait would never end.
  ~MpiEnv();
  MpiEnv(const MpiEnv&) = delete;
  MpiEnv& operator=(const MpiEnv&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  void abandon() { abandoned_ = true; }

 private:
  int rank_ = 0;
  int size_ = 1;
  bool abandoned_ = false;
  int exceptions_at_start_ = 0;
};

// "Open MPI v4.1.4, ..., MPI 3.1": library and standard, one line. Needs no MpiEnv.
std::string mpi_version_text();
// True if a launcher (mpirun, srun) started this process: its parent then speaks for the whole job.
bool started_by_launcher();

}  // namespace tandem
