// Which backends this binary has, and making one.
#include "base/error.h"
#include "kernels/backend.h"
#include "kernels/ops/dispatch.h"

namespace tandem {

std::unique_ptr<Backend> make_backend(BackendKind kind, const BackendOptions& options) {
  if (kind == BackendKind::kCpu) return std::make_unique<cpu::CpuBackend>(options);
#if TANDEM_WITH_CUDA
  return std::make_unique<cuda::CudaBackend>(options);
#else
  throw Error(ExitCode::kConfiguration,
              {.what = "backend cuda is not compiled into this binary",
               .where = "",
               .expected = "backend: cpu or auto",
               .remedy = "build with a cuda preset, or choose backend: cpu"});
#endif
}

BackendKind default_backend() {
#if TANDEM_WITH_CUDA
  return cuda::device_present() ? BackendKind::kCuda : BackendKind::kCpu;
#else
  return BackendKind::kCpu;
#endif
}

}  // namespace tandem
