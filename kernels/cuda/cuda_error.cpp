#include "kernels/cuda/cuda_error.h"

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "base/log.h"

namespace tandem::cuda {

void cuda_failed(cudaError_t error, const char* expression, const char* file, int line) {
  throw Error(ExitCode::kInternal,
              {.what = fmt::format("{}: {} ({})", expression, cudaGetErrorString(error),
                                   cudaGetErrorName(error)),
               .where = fmt::format("{}:{}", file, line)});
}

void log_cuda_failure(cudaError_t error, const char* what) noexcept {
  if (error == cudaSuccess) return;
  try {
    log_warning("{}: {}", what, cudaGetErrorString(error));
  } catch (...) {
    // A message that cannot be written is no reason to end the program from a destructor.
  }
}

}  // namespace tandem::cuda
