#include "kernels/cuda/linear_prompt_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "base/error.h"
#include "kernels/cuda/cuda_error.h"

namespace tandem::cuda {
namespace {

// From the driver that is loaded already: nothing links against libcuda.
PFN_cuTensorMapEncodeTiled_v12000 find_encoder() {
  constexpr unsigned kSinceCuda = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  TANDEM_CHECK_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                     kSinceCuda, cudaEnableDefault, &found));
  TANDEM_CHECK(found == cudaDriverEntryPointSuccess && function != nullptr,
               "the driver lacks cuTensorMapEncodeTiled ({})", static_cast<int>(found));
  return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
}

}  // namespace

CUtensorMap tile_map(const void* data, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                     int box_rows, int box_columns) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
  constexpr cuuint64_t kElementBytes = 2;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t row_bytes[] = {static_cast<cuuint64_t>(stride) * kElementBytes};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_columns),
                            static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, row_bytes,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  TANDEM_CHECK(result == CUDA_SUCCESS, "tensor map of {} x {} with stride {} at {}: error {}", rows,
               columns, stride, data, static_cast<int>(result));
  return map;
}

}  // namespace tandem::cuda
