// Whether the path between the ranks is one that the job accepts. Deciding needs evidence: what is
// not known to be RDMA does not count as RDMA.
#pragma once

#include <string>

#include "config/job_config.h"
#include "parallel/rank_layout.h"

namespace tandem {

// What carries the collectives of this run, as far as it can be told.
struct TransportEvidence {
  std::string name;      // "single rank", "mpi, ranks of one host", "mpi between hosts"
  bool is_rdma = false;  // proven
};

// MPI between the ranks of `layout`.
TransportEvidence mpi_transport(const RankLayout& layout);

// Throws Error{kTransport} when `require` is not met. kAuto asks for RDMA only between hosts.
void enforce_transport(TransportRequire require, const RankLayout& layout,
                       const TransportEvidence& evidence);

}  // namespace tandem
