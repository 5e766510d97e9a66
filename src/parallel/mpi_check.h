// For the .cpp files of parallel/ alone: the MPI header, its checking wrapper, and what HostComm
// hides.
#pragma once

#include <mpi.h>

#include <deque>
#include <string>

#include "base/error.h"
#include "parallel/host_comm.h"

namespace tandem {

// Throws Error{kRankFailure} with the call and MPI's own text: once running, MPI calls fail because
// a peer or the network did.
[[noreturn]] void mpi_failed(int status, const char* call, const char* file, int line);

struct HostComm::Impl {
  struct Post {
    MPI_Request request = MPI_REQUEST_NULL;
    std::string bytes;
  };

  MPI_Comm comm = MPI_COMM_NULL;
  std::deque<Post> posts;  // sent, perhaps not yet received

  explicit Impl(MPI_Comm handle) : comm(handle) {}
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
};

}  // namespace tandem

#define TANDEM_CHECK_MPI(call)                                            \
  do {                                                                    \
    const int tandem_mpi_status = (call);                                 \
    if (tandem_mpi_status != MPI_SUCCESS) [[unlikely]]                    \
      ::tandem::mpi_failed(tandem_mpi_status, #call, __FILE__, __LINE__); \
  } while (false)
