// DeviceComm over NCCL: one rank a GPU, collectives in the order of the backend's stream, fit to be
// captured in graphs.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"
#include "parallel/comm_watch.h"
#include "parallel/device_comm.h"
#include "parallel/host_comm.h"
#include "parallel/step_beacon.h"

namespace tandem {

// Collective over `group`. Refuses, naming both ranks, when two of them sit on the same GPU. The
// unique id is made on the group's rank 0, broadcast, and a checksum of it compared, one id a
// communicator. Throws Error{kTransport} when NCCL cannot connect on this rank.
//
// on_failure is told when connecting takes longer than connect_limit_s and when NCCL reports an
// error later: the kernel of a failed connection never ends, so the host that waits for it would
// hang. It must end the process. The communicator is not aborted: that would let the stream run on
// with unfinished sums, and tokens be made of them.
//
// `backend` must be a CUDA backend and outlive the result.
std::unique_ptr<DeviceComm> make_nccl_device_comm(const HostComm& group, Backend& backend,
                                                  StepBeacon* beacon,
                                                  FailureHandler on_failure = end_process,
                                                  double connect_limit_s = 120);

// "NCCL 2.28.3"
std::string nccl_version_text();

}  // namespace tandem
