// Linears of few rows, near the bandwidth of the weights. A block owns 16 outputs and 8 to 32 rows
// of x; its warps share the strands of K, whose sums meet in shared memory and are added there in
// their fixed order. Rows that do not exist are zeros and take part like others: one row and eight
// run the same instructions.
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/weights.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_kernels.h"

namespace tandem::cuda {
namespace {

using ops::WeightFormat;

constexpr int kMaxThreads = 512;

// Columns k .. k+7 of one row of x; zeros beyond `end` and for rows that do not exist.
__device__ __forceinline__ Columns8 load_x(const bf16* row, std::int64_t k, std::int64_t end,
                                           bool aligned) {
  Columns8 c{};
  if (row == nullptr || k >= end) return c;
  if (aligned) {
    const uint4 v = *reinterpret_cast<const uint4*>(row + k);
    return {{v.x, v.y, v.z, v.w}};
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    c.pair[i] = row[k + 2 * i].bits | uint32_t{row[k + 2 * i + 1].bits} << 16;
  }
  return c;
}

// What one lane knows of its tile.
template <WeightFormat kFormat, int kRowTiles>
struct Lane {
  using Weight = WeightRows<kFormat>;
  int g, t;                  // see device/mma.cuh
  std::int64_t out[2];       // g and g + 8; the last output again beyond the edge
  const std::uint8_t* w[2];  // their codes
  const bf16* x[kRowTiles];  // rows g, g + 8, ...; nullptr beyond the edge
  bool x_is_aligned;

  __device__ Lane(const ops::LinearArgs& a) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    g = lane / 4;
    t = lane % 4;
    for (int i = 0; i < 2; ++i) {
      out[i] =
          min(std::int64_t{blockIdx.x} * kLinearTileOuts + g + 8 * i, a.weight.out_features - 1);
      w[i] = Weight::row(a.weight, out[i]);
    }
    for (int i = 0; i < kRowTiles; ++i) {
      const std::int64_t row = (std::int64_t{blockIdx.y} * kRowTiles + i) * kLinearTileRows + g;
      x[i] = row < a.num_rows ? static_cast<const bf16*>(a.x) + row * a.x_stride : nullptr;
    }
    x_is_aligned = reinterpret_cast<std::uintptr_t>(a.x) % 16 == 0 && a.x_stride % 8 == 0;
  }
};

// Columns [begin, end) of a strand, without scales: kSteps steps at a time, so that as many loads
// are under way.
template <WeightFormat kFormat, int kRowTiles, int kSteps>
__device__ __forceinline__ std::int64_t run_steps(const ops::LinearArgs& a,
                                                  const Lane<kFormat, kRowTiles>& lane,
                                                  std::int64_t begin, std::int64_t end,
                                                  float (&sums)[kRowTiles][4]) {
  using Weight = WeightRows<kFormat>;
  std::int64_t k = begin + 8 * lane.t;
  for (; begin + kSteps * kLinearStep <= end; begin += kSteps * kLinearStep) {
    typename Weight::Raw raw[kSteps][2];
    Columns8 x[kSteps][kRowTiles];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      raw[s][0] = Weight::load(lane.w[0], k + s * kLinearStep);
      raw[s][1] = Weight::load(lane.w[1], k + s * kLinearStep);
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        x[s][r] = load_x(lane.x[r], k + s * kLinearStep, end, lane.x_is_aligned);
      }
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const std::int64_t column = k + s * kLinearStep;
      const Columns8 low = Weight::columns(a.weight, raw[s][0], lane.out[0], column);
      const Columns8 high = Weight::columns(a.weight, raw[s][1], lane.out[1], column);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) mma_step(sums[r], low, high, x[s][r]);
    }
    k += kSteps * kLinearStep;
  }
  return begin;
}

// The same for any range; the last step may be short.
template <WeightFormat kFormat, int kRowTiles>
__device__ __forceinline__ void run_range(const ops::LinearArgs& a,
                                          const Lane<kFormat, kRowTiles>& lane, std::int64_t begin,
                                          std::int64_t end, float (&sums)[kRowTiles][4]) {
  using Weight = WeightRows<kFormat>;
  constexpr int kSteps = kRowTiles > 2 ? 2 : 4;
  begin = run_steps<kFormat, kRowTiles, kSteps>(a, lane, begin, end, sums);
  begin = run_steps<kFormat, kRowTiles, 1>(a, lane, begin, end, sums);
  if (begin >= end) return;
  const std::int64_t k = begin + 8 * lane.t;
  Columns8 low{}, high{};
  if (k < end) {
    low = Weight::columns(a.weight, Weight::load(lane.w[0], k), lane.out[0], k);
    high = Weight::columns(a.weight, Weight::load(lane.w[1], k), lane.out[1], k);
  }
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    mma_step(sums[r], low, high, load_x(lane.x[r], k, end, lane.x_is_aligned));
  }
}

// The factor of a sum of products of output `out` over columns under one scale.
template <WeightFormat kFormat>
__device__ __forceinline__ float sum_factor(const ops::LinearWeight& w, std::int64_t out,
                                            std::int64_t k) {
  if constexpr (kFormat == WeightFormat::kFp8Tensor || kFormat == WeightFormat::kNvfp4) {
    return w.scale_2;
  } else if constexpr (kFormat == WeightFormat::kMxfp4) {
    return 1.0f;
  } else {
    return scale_at(w, out, k);
  }
}

template <WeightFormat kFormat, int kRowTiles>
__device__ __forceinline__ void run_strand(const ops::LinearArgs& a, const LinearOrder& order,
                                           const Lane<kFormat, kRowTiles>& lane, std::int64_t begin,
                                           std::int64_t end, float (&sums)[kRowTiles][4]) {
  if constexpr (kFormat == WeightFormat::kBf16) {
    run_range<kFormat, kRowTiles>(a, lane, begin, end, sums);
  } else {
    const std::int64_t unit = order.scale_columns > 0 ? order.scale_columns : end - begin;
    for (; begin < end; begin += unit) {
      float part[kRowTiles][4] = {};
      run_range<kFormat, kRowTiles>(a, lane, begin, min(end, begin + unit), part);
      const float low = sum_factor<kFormat>(a.weight, lane.out[0], begin);
      const float high = sum_factor<kFormat>(a.weight, lane.out[1], begin);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[r][i] = fmaf(part[r][i], i < 2 ? low : high, sums[r][i]);
      }
    }
  }
}

// Strands in ascending order, leaves as a tree; `sums` [strands, stride] is overwritten.
__device__ __forceinline__ float add_strands(const LinearOrder& order, float* sums, int stride) {
  for (int leaf = 0; leaf < order.num_leaves; ++leaf) {
    const float* strand = sums + leaf * order.strands_per_leaf * stride;
    float sum = strand[0];
    for (int s = 1; s < order.strands_per_leaf; ++s) sum += strand[s * stride];
    sums[leaf * stride] = sum;  // at or below the strands that have been read
  }
  for (int n = order.num_leaves; n > 1; n /= 2) {
    for (int i = 0; i < n / 2; ++i) {
      sums[i * stride] = sums[2 * i * stride] + sums[(2 * i + 1) * stride];
    }
  }
  return sums[0];
}

template <WeightFormat kFormat, int kRowTiles, class TY>
__global__ void __launch_bounds__(kMaxThreads)
    linear_narrow_kernel(ops::LinearArgs a, LinearOrder order) {
  constexpr int kRows = kLinearTileRows * kRowTiles;
  constexpr int kTile = kLinearTileOuts * kRows;
  extern __shared__ float strand_sums[];  // [strands][rows][outputs]
  const Lane<kFormat, kRowTiles> lane(a);
  const int warps = static_cast<int>(blockDim.x / kWarp);
  for (int strand = static_cast<int>(threadIdx.x / kWarp); strand < order.num_strands();
       strand += warps) {
    const int leaf = strand / order.strands_per_leaf;
    const std::int64_t leaf_begin = leaf * order.leaf_columns;
    const std::int64_t begin =
        leaf_begin + (strand - leaf * order.strands_per_leaf) * order.strand_columns;
    const std::int64_t end = min(begin + order.strand_columns, leaf_begin + order.leaf_columns);
    float sums[kRowTiles][4] = {};
    run_strand<kFormat, kRowTiles>(a, order, lane, begin, end, sums);
    float* to = strand_sums + strand * kTile;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = r * kLinearTileRows + 2 * lane.t + i % 2;
        to[row * kLinearTileOuts + lane.g + i / 2 * 8] = sums[r][i];
      }
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTile; i += static_cast<int>(blockDim.x)) {
    const std::int64_t row = std::int64_t{blockIdx.y} * kRows + i / kLinearTileOuts;
    const std::int64_t out = std::int64_t{blockIdx.x} * kLinearTileOuts + i % kLinearTileOuts;
    if (row >= a.num_rows || out >= a.weight.out_features) continue;
    store_float(add_strands(order, strand_sums + i, kTile),
                static_cast<TY*>(a.y) + row * a.y_stride + out);
  }
}

template <WeightFormat kFormat, int kRowTiles>
void run(const CudaBackend& backend, const ops::LinearArgs& args, const LinearOrder& order,
         const LinearPlan& plan) {
  const dim3 grid(blocks_for(args.weight.out_features, kLinearTileOuts),
                  blocks_for(args.num_rows, kLinearTileRows * kRowTiles));
  with_float_type(args.y_dtype, [&](auto y) {
    launch(backend, linear_narrow_kernel<kFormat, kRowTiles, decltype(y)>, grid,
           static_cast<unsigned>(plan.warps * kWarp), plan.shared_bytes, args, order);
  });
}

template <WeightFormat kFormat>
void run_rows(const CudaBackend& backend, const ops::LinearArgs& args, const LinearOrder& order,
              const LinearPlan& plan) {
  switch (plan.row_tiles) {
    case 1:
      return run<kFormat, 1>(backend, args, order, plan);
    case 2:
      return run<kFormat, 2>(backend, args, order, plan);
    default:
      return run<kFormat, 4>(backend, args, order, plan);
  }
}

}  // namespace

void linear_narrow(const CudaBackend& backend, const ops::LinearArgs& args,
                   const LinearOrder& order, const LinearPlan& plan) {
  switch (args.weight.format) {
    case WeightFormat::kBf16:
      return run_rows<WeightFormat::kBf16>(backend, args, order, plan);
    case WeightFormat::kFp8Block:
      return run_rows<WeightFormat::kFp8Block>(backend, args, order, plan);
    case WeightFormat::kFp8Tensor:
      return run_rows<WeightFormat::kFp8Tensor>(backend, args, order, plan);
    case WeightFormat::kFp8Channel:
      return run_rows<WeightFormat::kFp8Channel>(backend, args, order, plan);
    case WeightFormat::kNvfp4:
      return run_rows<WeightFormat::kNvfp4>(backend, args, order, plan);
    case WeightFormat::kMxfp4:
      return run_rows<WeightFormat::kMxfp4>(backend, args, order, plan);
    case WeightFormat::kInt8Channel:
      return run_rows<WeightFormat::kInt8Channel>(backend, args, order, plan);
    case WeightFormat::kInt8Group:
      return run_rows<WeightFormat::kInt8Group>(backend, args, order, plan);
    case WeightFormat::kF32:
      return linear_plain(backend, args, order);
  }
}

}  // namespace tandem::cuda
