// The collectives that go with a backend: NCCL on GPUs, MPI on CPUs.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "parallel/device_comm.h"
#include "parallel/host_comm.h"
#include "parallel/step_beacon.h"

namespace tandem {

// Collective over `group`, one tensor-parallel group. beacon may be null and must outlive the
// result.
std::unique_ptr<DeviceComm> make_device_comm(const HostComm& group, Backend& backend,
                                             StepBeacon* beacon);

}  // namespace tandem
