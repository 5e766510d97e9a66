// The bookkeeping of rounds: one thread a place. A place is a few dozen loads and stores, most of
// which do not wait for each other; with a block each, places are under way at the same time and
// all of them together take about as long as one.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/ops/verify_place.h"

namespace tandem::cuda {
namespace {

__global__ void lay_out_round_kernel(ops::LayOutRoundArgs a) {
  allow_next_kernel();
  wait_for_previous_kernel();
  ops::lay_out_place(a, static_cast<int>(blockIdx.x));
}

__global__ void verify_kernel(ops::VerifyArgs a) {
  allow_next_kernel();
  wait_for_previous_kernel();
  ops::verify_place(a, static_cast<int>(blockIdx.x));
}

__global__ void propose_kernel(ops::ProposeArgs a) {
  allow_next_kernel();
  wait_for_previous_kernel();
  ops::propose_place(a, static_cast<int>(blockIdx.x));
}

}  // namespace

void lay_out_round(CudaBackend& backend, const ops::LayOutRoundArgs& args) {
  launch_overlapping(backend, lay_out_round_kernel, static_cast<unsigned>(args.places.num_places),
                     1, 0, args);
}

void verify(CudaBackend& backend, const ops::VerifyArgs& args) {
  launch_overlapping(backend, verify_kernel, static_cast<unsigned>(args.places.num_places), 1, 0,
                     args);
}

void propose(CudaBackend& backend, const ops::ProposeArgs& args) {
  launch_overlapping(backend, propose_kernel, static_cast<unsigned>(args.places.num_places), 1, 0,
                     args);
}

}  // namespace tandem::cuda
