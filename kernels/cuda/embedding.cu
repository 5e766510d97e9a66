// Vocabulary-parallel embedding lookup: one block a row.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) embedding_kernel(ops::EmbeddingArgs a) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const std::int64_t row = blockIdx.x;
  const std::int64_t id = a.token_ids[row] - a.shard_begin;
  const bool ours = id >= 0 && id < a.shard_rows;
  const T* x = static_cast<const T*>(a.table) + (ours ? id * a.hidden : 0);
  float* y = a.out + row * a.hidden;
  for (int i = static_cast<int>(threadIdx.x); i < a.hidden; i += kThreads) {
    y[i] = ours ? load_float(x + i) : 0.0f;
  }
}

}  // namespace

void embedding(CudaBackend& backend, const ops::EmbeddingArgs& args) {
  with_float_type(args.table_dtype, [&](auto type) {
    launch_overlapping(backend, embedding_kernel<decltype(type)>,
                       static_cast<unsigned>(args.num_rows), kThreads, 0, args);
  });
}

}  // namespace tandem::cuda
