// Collects the evidence of transport.h on real ranks: runs the start-up test, reads what NCCL and
// the adapters' counters say about it on every rank, and brings it together, so that all ranks
// judge alike.
#pragma once

#include "kernels/backend.h"
#include "parallel/device_comm.h"
#include "parallel/group_check.h"
#include "parallel/host_comm.h"
#include "parallel/rank_layout.h"
#include "parallel/transport.h"

namespace tandem {

// Collective over `world`, all replicas at once; `group` and `comm` are this rank's tensor-parallel
// group. The same evidence on every rank. Throws what check_group() throws.
TransportEvidence audit_transport(const HostComm& world, const RankLayout& layout,
                                  const HostComm& group, DeviceComm& comm, Backend& backend,
                                  const GroupCheckOptions& options);

// Whether a test that sent `expected_bytes` over adapters left too little in their counters to have
// gone that way. Adapters that cannot be read say nothing.
bool counters_contradict(std::int64_t sent_bytes, std::int64_t expected_bytes, bool readable);

// "nccl NET/IB (RDMA); all-reduce of 8 KiB 31.0 us, of 32 MiB 23.7 GB/s, sums right": a line.
std::string describe_transport(const TransportEvidence& evidence);

}  // namespace tandem
