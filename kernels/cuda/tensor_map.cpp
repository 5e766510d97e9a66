#include "kernels/cuda/tensor_map.h"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <iterator>

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

constexpr cuuint64_t kElementBytes = 2;

template <int kRank>
CUtensorMap encoded(const void* data, const cuuint64_t (&sizes)[kRank],
                    const cuuint64_t (&stride_bytes)[kRank - 1], const cuuint32_t (&box)[kRank]) {
  static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
  cuuint32_t steps[kRank];
  std::fill(std::begin(steps), std::end(steps), 1);
  CUtensorMap map;
  // Lines of 128 bytes, a box's width: of twice that, the other half waits in the second-level
  // cache for the next box, and is in the way (steps of BF16 took 1.4 % longer).
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kRank, const_cast<void*>(data), sizes,
             stride_bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  TANDEM_CHECK(result == CUDA_SUCCESS,
               "tensor map of {} x {} with stride {} at {}, box of {} x {}: error {}", sizes[1],
               sizes[0], stride_bytes[0], data, box[1], box[0], static_cast<int>(result));
  return map;
}

}  // namespace

CUtensorMap tile_map(const void* data, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                     int box_rows, int box_columns) {
  return encoded<2>(data, {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)},
                    {static_cast<cuuint64_t>(stride) * kElementBytes},
                    {static_cast<cuuint32_t>(box_columns), static_cast<cuuint32_t>(box_rows)});
}

CUtensorMap tiles_map(const void* data, std::int64_t rows, std::int64_t columns,
                      std::int64_t stride, int box_rows, int box_tiles) {
  constexpr cuuint64_t kColumns = 64;
  return encoded<3>(
      data, {kColumns, static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(columns) / kColumns},
      {static_cast<cuuint64_t>(stride) * kElementBytes, kColumns * kElementBytes},
      {kColumns, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(box_tiles)});
}

}  // namespace tandem::cuda
