// DeviceComm over MPI, for the CPU backend and for tests.
#pragma once

#include <cstdint>
#include <memory>

#include "parallel/device_comm.h"
#include "parallel/host_comm.h"
#include "parallel/step_beacon.h"

namespace tandem {

// Communication buffer of one rank, for the memory plan: sums larger than `scratch_elements` travel
// in pieces. One formula for plan and construction.
std::int64_t mpi_device_comm_scratch_bytes(int size, std::int64_t scratch_elements);

// Collective. `group` is duplicated, so the two message spaces never mix. A group of one gets the
// single-rank implementation. beacon may be null and must outlive the result.
std::unique_ptr<DeviceComm> make_mpi_device_comm(const HostComm& group, StepBeacon* beacon,
                                                 std::int64_t scratch_elements = 1 << 18);

}  // namespace tandem
