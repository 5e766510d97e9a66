// DeviceComm over NCCL: one rank a GPU, collectives in the order of the backend's stream.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"
#include "parallel/device_comm.h"
#include "parallel/host_comm.h"
#include "parallel/step_beacon.h"

namespace tandem {

// Collective over `group`. Refuses, naming both ranks, when two of them sit on the same GPU. The
// unique id is made on the group's rank 0, broadcast, and a checksum of it compared, one id a
// communicator. Throws Error{kTransport} when NCCL cannot connect. `backend` must be a CUDA backend
// and outlive the result.
std::unique_ptr<DeviceComm> make_nccl_device_comm(const HostComm& group, Backend& backend,
                                                  StepBeacon* beacon);

// "NCCL 2.28.3"
std::string nccl_version_text();

}  // namespace tandem
