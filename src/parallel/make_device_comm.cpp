#include "parallel/make_device_comm.h"

#include "parallel/mpi_device_comm.h"
#if TANDEM_WITH_CUDA
#include "parallel/nccl_comm.h"
#endif

namespace tandem {

std::unique_ptr<DeviceComm> make_device_comm(const HostComm& group,
                                             [[maybe_unused]] Backend& backend,
                                             StepBeacon* beacon) {
#if TANDEM_WITH_CUDA
  if (backend.kind() == BackendKind::kCuda) return make_nccl_device_comm(group, backend, beacon);
#endif
  return make_mpi_device_comm(group, beacon);
}

}  // namespace tandem
