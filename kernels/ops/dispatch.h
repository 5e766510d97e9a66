// From a Backend to its implementation of an operator: the one place that knows which backends are
// compiled in. ops/<op>.cpp checks the arguments and ends in TANDEM_DISPATCH; a backend that lacks
// an operator fails to link.
#pragma once

#include "base/error.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_ops.h"
#if TANDEM_WITH_CUDA
#include "kernels/cuda/cuda_ops.h"
#endif

// Returns function(backend, ...) of the backend's namespace.
#if TANDEM_WITH_CUDA
#define TANDEM_DISPATCH(function, backend, ...)                                                    \
  return (backend).kind() == ::tandem::BackendKind::kCuda                                          \
             ? ::tandem::cuda::function(                                                           \
                   ::tandem::ops::backend_cast<::tandem::cuda::CudaBackend>(backend), __VA_ARGS__) \
             : ::tandem::cpu::function(                                                            \
                   ::tandem::ops::backend_cast<::tandem::cpu::CpuBackend>(backend), __VA_ARGS__)
#else
#define TANDEM_DISPATCH(function, backend, ...)                                                   \
  return ::tandem::cpu::function(::tandem::ops::backend_cast<::tandem::cpu::CpuBackend>(backend), \
                                 __VA_ARGS__)
#endif

namespace tandem::ops {

// kind() has been compared or leaves no choice; a test double is not a backend to run kernels on.
template <class Concrete>
Concrete& backend_cast(Backend& backend) {
  return static_cast<Concrete&>(backend);
}
template <class Concrete>
const Concrete& backend_cast(const Backend& backend) {
  return static_cast<const Concrete&>(backend);
}

}  // namespace tandem::ops
