// Which rank does what: tensor x data = ranks. Neighbouring ranks form a tensor-parallel group, so
// that a group stays on one host where it fits; groups are replicas that share the batch file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/job_config.h"
#include "parallel/host_comm.h"

namespace tandem {

struct RankPlace {
  std::string host;
  std::string host_id;
  long pid = 0;
  int local_rank = 0;  // among the ranks of this host
  int ranks_on_host = 1;
};

struct RankLayout {
  int rank = 0;
  int size = 1;
  int tensor = 1;       // ranks in a tensor-parallel group
  int data = 1;         // groups
  int tensor_rank = 0;  // of this rank in its group
  int replica = 0;      // group of this rank
  int num_hosts = 1;
  std::vector<RankPlace> places;  // [size]

  const RankPlace& place() const { return places[static_cast<std::size_t>(rank)]; }
  bool replica_leader() const { return tensor_rank == 0; }
  bool spans_hosts() const { return num_hosts > 1; }
};

// Pure. `places` needs host, host_id and pid; the local numbers are filled in here. Throws
// Error{kConfiguration} if the job's parallel section does not match the number of ranks.
RankLayout make_rank_layout(int rank, const ParallelSection& parallel,
                            std::vector<RankPlace> places);
// Collective: exchanges the hosts first.
RankLayout agree_rank_layout(const HostComm& world, const ParallelSection& parallel);
// The same split for a plan without MPI: `ranks` ranks, each on a host of its own.
RankLayout plan_rank_layout(int ranks, const ParallelSection& parallel);

// "rank 0 -> spark1 (pid 4711, replica 0, tensor 0 of 2)", one line a rank.
std::string render_rank_map(const RankLayout& layout);

}  // namespace tandem
