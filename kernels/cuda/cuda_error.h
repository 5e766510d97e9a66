// Checking wrappers for calls of the CUDA runtime. A failed call throws with the expression, the
// place, and CUDA's own text. Free of CUDA headers but for the error type.
#pragma once

#include <driver_types.h>

namespace tandem::cuda {

[[noreturn]] void cuda_failed(cudaError_t error, const char* expression, const char* file,
                              int line);
// For destructors: logs and goes on.
void log_cuda_failure(cudaError_t error, const char* what) noexcept;

}  // namespace tandem::cuda

#define TANDEM_CHECK_CUDA(expression)                                                  \
  do {                                                                                 \
    const cudaError_t tandem_cuda_error = (expression);                                \
    if (tandem_cuda_error != cudaSuccess) [[unlikely]]                                 \
      ::tandem::cuda::cuda_failed(tandem_cuda_error, #expression, __FILE__, __LINE__); \
  } while (false)
