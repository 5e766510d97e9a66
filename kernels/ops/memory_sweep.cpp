#include "kernels/ops/memory_sweep.h"

#include "kernels/ops/check.h"
#include "kernels/ops/dispatch.h"

namespace tandem::ops {
namespace {

void check_array(const std::uint32_t* data, std::int64_t words, const char* name) {
  check_present(data, name);
  TANDEM_CHECK(reinterpret_cast<std::uintptr_t>(data) % kSweepUnitBytes == 0, "{} at {}", name,
               static_cast<const void*>(data));
  TANDEM_CHECK(words >= 0 && words % (kSweepUnitBytes / 4) == 0, "{} words", words);
}

void check_sweep(const Backend& backend, const SweepArgs& args) {
  check_array(args.x, args.words, "x");
  check_present(args.y, "y");
  TANDEM_CHECK(args.way >= 0 && args.way < num_sweep_ways(backend), "way {} of {}", args.way,
               num_sweep_ways(backend));
}

}  // namespace

int num_sweep_ways(const Backend& backend) {
#if TANDEM_WITH_CUDA
  if (backend.kind() == BackendKind::kCuda) return cuda::kSweepWays;
#endif
  return backend.kind() == BackendKind::kCpu ? cpu::kSweepWays : 0;
}

void sweep_fill(Backend& backend, std::uint32_t* y, std::int64_t words) {
  check_array(y, words, "y");
  TANDEM_DISPATCH(sweep_fill, backend, y, words);
}

void sweep_sum(Backend& backend, const SweepArgs& args) {
  check_sweep(backend, args);
  TANDEM_DISPATCH(sweep_sum, backend, args);
}

void sweep_copy(Backend& backend, const SweepArgs& args) {
  check_sweep(backend, args);
  check_array(args.y, args.words, "y");
  TANDEM_DISPATCH(sweep_copy, backend, args);
}

void sweep_add(Backend& backend, const SweepArgs& args) {
  check_sweep(backend, args);
  check_array(args.y, args.words, "y");
  check_array(args.z, args.words, "z");
  TANDEM_DISPATCH(sweep_add, backend, args);
}

}  // namespace tandem::ops
