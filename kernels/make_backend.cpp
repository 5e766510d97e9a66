// Which backends this binary has, making one, and what is asked of a device beside its work.
#include "base/error.h"
#include "kernels/backend.h"
#include "kernels/device_sensors.h"
#include "kernels/ops/dispatch.h"
#if TANDEM_WITH_CUDA
#include "kernels/cuda/sensors.h"
#endif

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

std::vector<VisibleGpu> visible_gpus() {
#if TANDEM_WITH_CUDA
  return cuda::visible_gpus();
#else
  return {};
#endif
}

std::unique_ptr<DeviceSensors> make_device_sensors(const Backend& backend, std::string& why) {
#if TANDEM_WITH_CUDA
  if (backend.kind() == BackendKind::kCuda) return cuda::make_nvml_sensors(why);
#endif
  why = backend.kind() == BackendKind::kCpu ? "no GPU is used" : "no sensors of this backend";
  return nullptr;
}

std::string device_library_text() {
#if TANDEM_WITH_CUDA
  return cuda::cuda_version_text();
#else
  return "not compiled in";
#endif
}

}  // namespace tandem
