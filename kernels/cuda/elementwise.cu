// SiLU gating, row gather and scatter, rounding to storage type.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_chain.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ std::int64_t global_thread() {
  return std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
}

template <class T>
__global__ void __launch_bounds__(kThreads) silu_mul_kernel(ops::SiluMulArgs a) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const std::int64_t i = global_thread();
  if (i >= std::int64_t{a.num_rows} * a.width) return;
  const float gate = load_float(static_cast<const T*>(a.gate) + i);
  const float up = load_float(static_cast<const T*>(a.up) + i);
  store_float(silu(gate) * up, static_cast<T*>(a.y) + i);
}

template <class T>
__global__ void __launch_bounds__(kThreads) cast_kernel(ops::CastArgs a) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const std::int64_t i = global_thread();
  if (i < a.count) store_float(a.x[i], static_cast<T*>(a.y) + i);
}

__global__ void __launch_bounds__(kThreads) add_kernel(ops::AddArgs a) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const std::int64_t i = global_thread();
  if (i < a.count) a.y[i] += a.x[i];
}

// Rows of one array to rows of another; an index array names the rows of either side.
struct RowCopy {
  const std::byte* x = nullptr;
  const std::int32_t* x_rows = nullptr;  // nullptr: row i
  std::int64_t x_stride_bytes = 0;
  std::byte* y = nullptr;
  const std::int32_t* y_rows = nullptr;
  std::int64_t y_stride_bytes = 0;
  std::int64_t row_bytes = 0;
};

// One block a row. Unit: the widest type that all rows of both sides are aligned to.
template <class Unit>
__global__ void __launch_bounds__(kThreads) copy_rows_kernel(RowCopy c) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int i = static_cast<int>(blockIdx.x);
  const std::int64_t from = c.x_rows == nullptr ? i : c.x_rows[i];
  const std::int64_t to = c.y_rows == nullptr ? i : c.y_rows[i];
  const auto* x = reinterpret_cast<const Unit*>(c.x + from * c.x_stride_bytes);
  auto* y = reinterpret_cast<Unit*>(c.y + to * c.y_stride_bytes);
  const std::int64_t units = c.row_bytes / static_cast<std::int64_t>(sizeof(Unit));
  for (std::int64_t u = threadIdx.x; u < units; u += kThreads) y[u] = x[u];
}

void copy_rows(const CudaBackend& backend, int num_rows, const RowCopy& c) {
  const auto bits = reinterpret_cast<std::uintptr_t>(c.x) | reinterpret_cast<std::uintptr_t>(c.y) |
                    static_cast<std::uintptr_t>(c.x_stride_bytes | c.y_stride_bytes | c.row_bytes);
  const auto rows = static_cast<unsigned>(num_rows);
  if (bits % sizeof(int4) == 0)
    return launch_overlapping(backend, copy_rows_kernel<int4>, rows, kThreads, 0, c);
  if (bits % sizeof(int) == 0)
    return launch_overlapping(backend, copy_rows_kernel<int>, rows, kThreads, 0, c);
  launch_overlapping(backend, copy_rows_kernel<std::byte>, rows, kThreads, 0, c);
}

}  // namespace

void silu_mul(CudaBackend& backend, const ops::SiluMulArgs& args) {
  if (backend.chain().add_silu(args)) return;
  const unsigned blocks = blocks_for(std::int64_t{args.num_rows} * args.width, kThreads);
  with_float_type(args.dtype, [&](auto type) {
    launch_overlapping(backend, silu_mul_kernel<decltype(type)>, blocks, kThreads, 0, args);
  });
}

void cast(CudaBackend& backend, const ops::CastArgs& args) {
  if (args.y == args.x) return;
  with_float_type(args.y_dtype, [&](auto type) {
    launch_overlapping(backend, cast_kernel<decltype(type)>, blocks_for(args.count, kThreads),
                       kThreads, 0, args);
  });
}

void add(CudaBackend& backend, const ops::AddArgs& args) {
  launch_overlapping(backend, add_kernel, blocks_for(args.count, kThreads), kThreads, 0, args);
}

void gather_rows(CudaBackend& backend, const ops::GatherRowsArgs& args) {
  copy_rows(backend, args.num_rows,
            {.x = static_cast<const std::byte*>(args.x),
             .x_rows = args.rows,
             .x_stride_bytes = args.row_bytes,
             .y = static_cast<std::byte*>(args.y),
             .y_stride_bytes = args.y_stride_bytes,
             .row_bytes = args.row_bytes});
}

void scatter_rows(CudaBackend& backend, const ops::ScatterRowsArgs& args) {
  copy_rows(backend, args.num_rows,
            {.x = static_cast<const std::byte*>(args.x),
             .x_stride_bytes = args.row_bytes,
             .y = static_cast<std::byte*>(args.y),
             .y_rows = args.rows,
             .y_stride_bytes = args.row_bytes,
             .row_bytes = args.row_bytes});
}

}  // namespace tandem::cuda
