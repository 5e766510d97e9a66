#include <fmt/format.h>

#include "base/build_info.h"
#include "cli/cli.h"
#include "kernels/device_sensors.h"
#include "output/h5_handle.h"
#include "parallel/collective_library.h"
#include "parallel/mpi_env.h"

namespace tandem {

std::string version_text() {
  const BuildInfo& build = build_info();
  return fmt::format(
      "tandem {}\n"
      "revision:    {}\n"
      "compiler:    {}\n"
      "flags:       {} ({})\n"
      "backends:    {}\n"
      "GPU targets: {}\n"
      "MPI:         {}\n"
      "HDF5:        {}\n"
      "NCCL:        {}\n"
      "CUDA:        {}\n"
      "UCX:         {}\n",
      build.version, build.git_revision, build.compiler, build.flags, build.build_type,
      TANDEM_BACKENDS, TANDEM_GPU_TARGETS, mpi_version_text(), hdf5_version_text(),
      gpu_collective_library_text(), device_library_text(),
      "not linked (only inside MPI, if at all)");
}

}  // namespace tandem
