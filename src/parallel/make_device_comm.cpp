#include "parallel/make_device_comm.h"

#include "base/error.h"
#include "parallel/host_staged_comm.h"
#include "parallel/mpi_device_comm.h"
#if TANDEM_WITH_NCCL
#include "parallel/nccl_comm.h"
#endif

namespace tandem {
namespace {

#if TANDEM_WITH_NCCL
constexpr bool kNcclCompiledIn = true;
#else
constexpr bool kNcclCompiledIn = false;
#endif

[[noreturn]] void refuse_nccl(std::string what, std::string remedy) {
  throw Error(ExitCode::kConfiguration, {.what = std::move(what),
                                         .where = "parallel.collectives",
                                         .expected = "a backend and a binary with NCCL",
                                         .remedy = std::move(remedy)});
}

}  // namespace

CollectivesKind resolve_collectives(CollectivesChoice choice, BackendKind backend) {
  if (choice == CollectivesChoice::kNccl) {
    if (backend == BackendKind::kCpu) {
      refuse_nccl("nccl works on GPUs only, and the backend is cpu", "leave it at auto");
    }
    if (!kNcclCompiledIn) {
      refuse_nccl("NCCL is not compiled into this binary",
                  "build with -DTANDEM_WITH_NCCL=ON, or choose host");
    }
  }
  if (backend == BackendKind::kCpu) return CollectivesKind::kMpi;
  if (choice == CollectivesChoice::kHost || !kNcclCompiledIn) return CollectivesKind::kHostStaged;
  return CollectivesKind::kNccl;
}

std::unique_ptr<DeviceComm> make_device_comm(const HostComm& group, Backend& backend,
                                             const DeviceCommOptions& options) {
  switch (resolve_collectives(options.collectives, backend.kind())) {
    case CollectivesKind::kHostStaged:
      return make_host_staged_comm(group, backend, options.beacon);
    case CollectivesKind::kNccl:
#if TANDEM_WITH_NCCL
      return make_nccl_device_comm(group, backend, options.beacon, options.on_failure);
#endif
    case CollectivesKind::kMpi:
      break;
  }
  return make_mpi_device_comm(group, options.beacon);
}

}  // namespace tandem
