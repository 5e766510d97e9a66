// DeviceComm for a device whose memory MPI cannot reach: sums and parts pass through page-locked
// host memory. Slow, because the host waits for the device and the device for the host at every
// call, but it needs no NCCL and joins ranks that share one GPU. Not for graphs.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/backend.h"
#include "parallel/device_comm.h"
#include "parallel/host_comm.h"
#include "parallel/step_beacon.h"

namespace tandem {

// Collective. `backend` must outlive the result; beacon may be null. Messages larger than
// piece_bytes, a multiple of 4, travel in pieces; size() pieces are allocated. A group of one gets
// the single-rank implementation.
std::unique_ptr<DeviceComm> make_host_staged_comm(const HostComm& group, Backend& backend,
                                                  StepBeacon* beacon,
                                                  std::int64_t piece_bytes = std::int64_t{4} << 20);

}  // namespace tandem
