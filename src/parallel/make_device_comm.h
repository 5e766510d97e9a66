// The collectives that go with a backend: NCCL on GPUs, MPI on CPUs, MPI through host memory where
// the job asks for it or NCCL is not compiled in.
#pragma once

#include <memory>

#include "config/job_config.h"
#include "kernels/backend.h"
#include "parallel/comm_watch.h"
#include "parallel/device_comm.h"
#include "parallel/gpu_assignment.h"
#include "parallel/host_comm.h"
#include "parallel/step_beacon.h"

namespace tandem {

enum class CollectivesKind { kMpi, kHostStaged, kNccl };

// What `choice` means on `backend`. Throws Error{kConfiguration} if it cannot be had.
CollectivesKind resolve_collectives(CollectivesChoice choice, BackendKind backend);
// Only NCCL keeps a record of its paths, so only it is to be heard before a judgement.
inline bool keeps_record(CollectivesKind kind) { return kind == CollectivesKind::kNccl; }
inline GpuSharing gpu_sharing(CollectivesKind kind) {
  return kind == CollectivesKind::kNccl ? GpuSharing::kRefuse : GpuSharing::kAllow;
}

struct DeviceCommOptions {
  CollectivesChoice collectives = CollectivesChoice::kAuto;
  StepBeacon* beacon = nullptr;  // must outlive the result
  // See nccl_comm.h.
  FailureHandler on_failure = end_process;
};

// Collective over `group`, one tensor-parallel group. `backend` must outlive the result.
std::unique_ptr<DeviceComm> make_device_comm(const HostComm& group, Backend& backend,
                                             const DeviceCommOptions& options);

}  // namespace tandem
