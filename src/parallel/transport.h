// Whether the path between the ranks is one that the job accepts. Deciding needs evidence: what is
// not known to be RDMA does not count as RDMA. Pure: who collects the evidence is transport_audit's
// and nccl_log's.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "config/job_config.h"
#include "parallel/rank_layout.h"

namespace tandem {

// Best first; of several, the last one counts.
enum class PathKind {
  kP2p,       // GPU to GPU, over NVLink or PCIe
  kRdma,      // a network adapter that reads and writes memory: InfiniBand, RoCE
  kShm,       // memory of one host
  kOtherNet,  // a network plugin of which nothing is known
  kSocket,    // TCP
  kUnknown,
};
// "P2P", "NET/IB", "SHM", "NET, other", "NET/Socket", "unknown"
std::string path_kind_name(PathKind kind);

// One line of a rank's record about a connection, with the ranks of that rank's communicator.
struct PathSighting {
  enum class Side { kSender, kReceiver };
  int from = 0;
  int to = 0;
  Side side = Side::kSender;  // who wrote the line
  PathKind kind = PathKind::kUnknown;
  std::string path;  // "NET/IB/0/GDRDMA"
};

// What is known about one direction of a pair of ranks.
struct RankPath {
  int from = 0;
  int to = 0;
  PathKind kind = PathKind::kUnknown;
  std::string how;  // "NET/IB/0/GDRDMA on 2 channels", or why it is unknown
};

// sightings: [size][lines]: what each rank of one communicator wrote. The worst line of a pair
// counts. A pair is unknown if its two ends contradict each other or if one end of a network
// connection wrote nothing; so is the connection of a rank that nobody is seen to reach.
std::vector<RankPath> judge_paths(const std::vector<std::vector<PathSighting>>& sightings);

// What carries the collectives of this run, as far as it can be told.
struct TransportEvidence {
  // "single rank", "mpi, ranks of one host", "nccl NET/IB", "nccl NET/IB + P2P", "nccl unknown"
  std::string name;
  bool is_rdma = false;                   // proven
  bool crosses_hosts_by_rdma = false;     // of some pair on two hosts
  std::vector<std::string> pairs = {};    // "0 -> 1: NET/IB/0/GDRDMA on 2 channels"; world ranks
  std::vector<std::string> devices = {};  // "rank 0: NET/IB [0]mlx5_0:1/RoCE"
  std::vector<std::string> doubts = {};   // what speaks against it, though it does not decide
  // The start-up test: the slowest rank's median all-reduce.
  std::optional<double> latency_us = {};
  std::optional<double> bandwidth_gb_s = {};  // bytes of the message over its time, 1e9
  std::int64_t latency_bytes = 0;             // of the message
  std::int64_t bandwidth_bytes = 0;
};

// MPI between the ranks of `layout`.
TransportEvidence mpi_transport(const RankLayout& layout);
// NCCL; paths in world ranks, of all replicas together. Proven RDMA: between hosts nothing but
// kRdma and kP2p, within a host no network but RDMA.
TransportEvidence nccl_transport(const RankLayout& layout, const std::vector<RankPath>& paths);

// Throws Error{kTransport} when `require` is not met. kAuto asks for RDMA only between hosts, and
// only of ranks that share a model: replicas exchange nothing but finished requests.
void enforce_transport(TransportRequire require, const RankLayout& layout,
                       const TransportEvidence& evidence);

}  // namespace tandem
