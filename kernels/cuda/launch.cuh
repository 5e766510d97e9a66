// Starting a kernel on the backend's stream, with the checks that every start needs.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/types.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/ops/kv_pages.h"
#include "kernels/ops/linear.h"

namespace tandem::cuda {

// What a block may use without asking; more has to be requested for the kernel.
inline constexpr std::size_t kDefaultSharedBytes = 48 * 1024;

template <class... Parameters>
void allow_shared_bytes(void (*kernel)(Parameters...), std::size_t bytes) {
  if (bytes <= kDefaultSharedBytes) return;
  TANDEM_CHECK_CUDA(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(bytes)));
}

template <class... Parameters>
int registers_of(void (*kernel)(Parameters...)) {
  cudaFuncAttributes attributes{};
  TANDEM_CHECK_CUDA(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)));
  return attributes.numRegs;
}

template <class... Parameters, class... Arguments>
void launch(const CudaBackend& backend, void (*kernel)(Parameters...), dim3 grid, dim3 block,
            std::size_t shared_bytes, Arguments... arguments) {
  allow_shared_bytes(kernel, shared_bytes);
  kernel<<<grid, block, shared_bytes, backend.stream()>>>(static_cast<Parameters>(arguments)...);
  TANDEM_CHECK_CUDA(cudaGetLastError());
}

// launch_overlapping() in clusters of cluster_blocks along x; 0: as the kernel itself says.
template <class... Parameters, class... Arguments>
void launch_overlapping_clusters(const CudaBackend& backend, unsigned cluster_blocks,
                                 void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                 std::size_t shared_bytes, Arguments... arguments) {
  allow_shared_bytes(kernel, shared_bytes);
  cudaLaunchAttribute attributes[3]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  // Kernels share a processor only while it divides its memory alike for both.
  attributes[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  attributes[1].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  attributes[2].id = cudaLaunchAttributeClusterDimension;
  attributes[2].val.clusterDim = {cluster_blocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = backend.stream();
  config.attrs = attributes;
  config.numAttrs = cluster_blocks > 0 ? 3 : 2;
  TANDEM_CHECK_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

// The same for a kernel that calls wait_for_previous_kernel() (device/dependency.cuh) before it
// touches anything that a kernel has written: it may begin while the one before is ending.
template <class... Parameters, class... Arguments>
void launch_overlapping(const CudaBackend& backend, void (*kernel)(Parameters...), dim3 grid,
                        dim3 block, std::size_t shared_bytes, Arguments... arguments) {
  launch_overlapping_clusters(backend, 0, kernel, grid, block, shared_bytes, arguments...);
}

__host__ __device__ constexpr std::int64_t divide_up(std::int64_t n, std::int64_t unit) {
  return (n + unit - 1) / unit;
}

// grid.x holds 2^31 - 1 blocks, the other dimensions 65535: counts that grow with the batch go to
// x.
inline unsigned blocks_for(std::int64_t n, std::int64_t unit) {
  return static_cast<unsigned>(divide_up(n, unit));
}

// Calls function(float{}) or function(bf16{}): the storage type as a template argument.
template <class Function>
void with_float_type(DType dtype, const Function& function) {
  if (dtype == DType::kF32) {
    function(float{});
  } else {
    function(bf16{});
  }
}

// The same for what pages hold; both formats of FP8 are E4M3.
template <class Function>
void with_page_type(ops::KvFormat format, const Function& function) {
  if (ops::is_fp8(format)) {
    function(e4m3{});
  } else {
    with_float_type(ops::kv_dtype(format), function);
  }
}

// Calls function(std::integral_constant<WeightFormat, ..>{}) for a format that the matrix units
// take, which is every one but F32: that one calls nothing.
template <class Function>
void with_code_format(ops::WeightFormat format, const Function& function) {
  using ops::WeightFormat;
  switch (format) {
    case WeightFormat::kBf16:
      return function(std::integral_constant<WeightFormat, WeightFormat::kBf16>{});
    case WeightFormat::kFp8Block:
      return function(std::integral_constant<WeightFormat, WeightFormat::kFp8Block>{});
    case WeightFormat::kFp8Tensor:
      return function(std::integral_constant<WeightFormat, WeightFormat::kFp8Tensor>{});
    case WeightFormat::kFp8Channel:
      return function(std::integral_constant<WeightFormat, WeightFormat::kFp8Channel>{});
    case WeightFormat::kNvfp4:
      return function(std::integral_constant<WeightFormat, WeightFormat::kNvfp4>{});
    case WeightFormat::kMxfp4:
      return function(std::integral_constant<WeightFormat, WeightFormat::kMxfp4>{});
    case WeightFormat::kInt8Channel:
      return function(std::integral_constant<WeightFormat, WeightFormat::kInt8Channel>{});
    case WeightFormat::kInt8Group:
      return function(std::integral_constant<WeightFormat, WeightFormat::kInt8Group>{});
    case WeightFormat::kF32:
      return;
  }
}

}  // namespace tandem::cuda
