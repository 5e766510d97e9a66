#include "parallel/collective_library.h"

#if TANDEM_WITH_NCCL
#include "parallel/nccl_comm.h"
#endif

namespace tandem {

std::string gpu_collective_library_text() {
#if TANDEM_WITH_NCCL
  return nccl_version_text();
#else
  return "not compiled in";
#endif
}

}  // namespace tandem
