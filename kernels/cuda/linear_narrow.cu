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

constexpr int kMaxThreads = 256;

// Registers decide how many warps load at once: what the smallest kernels can spare makes a third
// block.
constexpr int blocks_of_processor(WeightFormat format, int row_tiles, int out_tiles) {
  if (format == WeightFormat::kBf16) return row_tiles == 1 ? 3 : row_tiles == 2 ? 2 : 1;
  return row_tiles * out_tiles <= 2 ? 2 : 1;
}

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

// What one lane knows of its tiles.
template <WeightFormat kFormat, int kRowTiles, int kOutTiles>
struct Lane {
  using Row = typename WeightRows<kFormat>::Row;
  int g, t;                        // see device/mma.cuh
  std::int64_t out[kOutTiles][2];  // g and g + 8 of each tile; the last output again at the edge
  Row w[kOutTiles][2];             // their codes
  const bf16* x[kRowTiles];        // rows g, g + 8, ...; nullptr beyond the edge
  bool x_is_aligned;

  __device__ Lane(const ops::LinearArgs& a)
      : g(static_cast<int>(threadIdx.x % kWarp) / 4), t(static_cast<int>(threadIdx.x) % 4) {
#pragma unroll
    for (int i = 0; i < 2 * kOutTiles; ++i) {
      const std::int64_t n = std::int64_t{blockIdx.x} * kOutTiles * kLinearTileOuts + 8 * i + g;
      out[i / 2][i % 2] = min(n, a.weight.out_features - 1);
      w[i / 2][i % 2] = Row(a.weight, out[i / 2][i % 2]);
    }
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      const std::int64_t row = (std::int64_t{blockIdx.y} * kRowTiles + i) * kLinearTileRows + g;
      x[i] = row < a.num_rows ? static_cast<const bf16*>(a.x) + row * a.x_stride : nullptr;
    }
    x_is_aligned = reinterpret_cast<std::uintptr_t>(a.x) % 16 == 0 && a.x_stride % 8 == 0;
  }
};

// The factor of a sum of products of output `out` over columns under one scale.
template <WeightFormat kFormat>
__device__ __forceinline__ float sum_factor(const ops::LinearWeight& w, std::int64_t out,
                                            std::int64_t k) {
  if constexpr (kFormat == WeightFormat::kFp8Tensor || kFormat == WeightFormat::kNvfp4) {
    return w.scale_2;
  } else if constexpr (kFormat == WeightFormat::kBf16 || kFormat == WeightFormat::kMxfp4) {
    return 1.0f;
  } else {
    return scale_at(w, out, k);
  }
}

template <int kRowTiles, int kOutTiles>
using TileSums = float[kOutTiles][kRowTiles][4];

// sums += part, times the factors of the outputs; part becomes zero.
template <WeightFormat kFormat, int kRowTiles, int kOutTiles>
__device__ __forceinline__ void apply_factors(const ops::LinearArgs& a,
                                              const Lane<kFormat, kRowTiles, kOutTiles>& lane,
                                              std::int64_t k, TileSums<kRowTiles, kOutTiles>& part,
                                              TileSums<kRowTiles, kOutTiles>& sums) {
#pragma unroll
  for (int o = 0; o < kOutTiles; ++o) {
    const float low = sum_factor<kFormat>(a.weight, lane.out[o][0], k);
    const float high = sum_factor<kFormat>(a.weight, lane.out[o][1], k);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[o][r][i] = fmaf(part[o][r][i], i < 2 ? low : high, sums[o][r][i]);
        part[o][r][i] = 0.0f;
      }
    }
  }
}

// One strand, columns [begin, end), with all factors applied. The codes of several steps are under
// way at a time; those of x come from nearby caches.
template <WeightFormat kFormat, int kRowTiles, int kOutTiles>
__device__ __forceinline__ void run_strand(const ops::LinearArgs& a, const LinearOrder& order,
                                           const Lane<kFormat, kRowTiles, kOutTiles>& lane,
                                           std::int64_t begin, std::int64_t end,
                                           TileSums<kRowTiles, kOutTiles>& sums) {
  using Weight = WeightRows<kFormat>;
  constexpr int kSteps = Weight::kSteps / kOutTiles;
  // Steps under one scale; the sums of a format without one need no factor and no second set.
  constexpr bool kScaled = kFormat != WeightFormat::kBf16 && kFormat != WeightFormat::kMxfp4;
  const int unit = order.scale_columns > 0 ? order.scale_columns / kLinearStep : 1 << 30;
  TileSums<kRowTiles, kOutTiles> scaled_part = {};
  auto& part = kScaled ? scaled_part : sums;
  int steps_of_part = 0;
  std::int64_t part_begin = begin;
  for (std::int64_t batch = begin; batch < end; batch += kSteps * kLinearStep) {
    const std::int64_t first = batch + 8 * lane.t;
    typename Weight::Raw raw[kSteps][kOutTiles][2] = {};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const std::int64_t k = first + s * kLinearStep;
      if (k >= end) continue;
#pragma unroll
      for (int o = 0; o < kOutTiles; ++o) {
        raw[s][o][0] = lane.w[o][0].load(k);
        raw[s][o][1] = lane.w[o][1].load(k);
      }
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (batch + s * kLinearStep >= end) break;
      Columns8 x[kRowTiles];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        x[r] = load_x(lane.x[r], first + s * kLinearStep, end, lane.x_is_aligned);
      }
#pragma unroll
      for (int o = 0; o < kOutTiles; ++o) {
        const Columns8 low = Weight::columns(raw[s][o][0]);
        const Columns8 high = Weight::columns(raw[s][o][1]);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) mma_step(part[o][r], low, high, x[r]);
      }
      if constexpr (kScaled) {
        const std::int64_t next = batch + (s + 1) * kLinearStep;
        if (++steps_of_part < unit && next < end) continue;
        apply_factors<kFormat, kRowTiles, kOutTiles>(a, lane, part_begin, part, sums);
        steps_of_part = 0;
        part_begin = next;
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

template <WeightFormat kFormat, int kRowTiles, int kOutTiles, class TY>
__global__ void __launch_bounds__(kMaxThreads, blocks_of_processor(kFormat, kRowTiles, kOutTiles))
    linear_narrow_kernel(ops::LinearArgs a, LinearOrder order) {
  constexpr int kRows = kLinearTileRows * kRowTiles;
  constexpr int kOuts = kLinearTileOuts * kOutTiles;
  constexpr int kTile = kOuts * kRows;
  extern __shared__ float strand_sums[];  // [strands][rows][outputs]
  const Lane<kFormat, kRowTiles, kOutTiles> lane(a);
  const int warps = static_cast<int>(blockDim.x / kWarp);
  for (int strand = static_cast<int>(threadIdx.x / kWarp); strand < order.num_strands();
       strand += warps) {
    const int leaf = strand / order.strands_per_leaf;
    const std::int64_t leaf_begin = leaf * order.leaf_columns;
    const std::int64_t begin =
        leaf_begin + (strand - leaf * order.strands_per_leaf) * order.strand_columns;
    const std::int64_t end = min(begin + order.strand_columns, leaf_begin + order.leaf_columns);
    TileSums<kRowTiles, kOutTiles> sums = {};
    run_strand<kFormat, kRowTiles, kOutTiles>(a, order, lane, begin, end, sums);
    float* to = strand_sums + strand * kTile;
#pragma unroll
    for (int o = 0; o < kOutTiles; ++o) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = r * kLinearTileRows + 2 * lane.t + i % 2;
          to[row * kOuts + o * kLinearTileOuts + lane.g + i / 2 * 8] = sums[o][r][i];
        }
      }
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTile; i += static_cast<int>(blockDim.x)) {
    const std::int64_t row = std::int64_t{blockIdx.y} * kRows + i / kOuts;
    const std::int64_t out = std::int64_t{blockIdx.x} * kOuts + i % kOuts;
    if (row >= a.num_rows || out >= a.weight.out_features) continue;
    store_float(add_strands(order, strand_sums + i, kTile),
                static_cast<TY*>(a.y) + row * a.y_stride + out);
  }
}

template <WeightFormat kFormat, int kRowTiles, int kOutTiles>
void run(const CudaBackend& backend, const ops::LinearArgs& args, const LinearOrder& order,
         const LinearPlan& plan) {
  const dim3 grid(blocks_for(args.weight.out_features, kLinearTileOuts * kOutTiles),
                  blocks_for(args.num_rows, kLinearTileRows * kRowTiles));
  with_float_type(args.y_dtype, [&](auto y) {
    launch(backend, linear_narrow_kernel<kFormat, kRowTiles, kOutTiles, decltype(y)>, grid,
           static_cast<unsigned>(plan.warps * kWarp), plan.shared_bytes, args, order);
  });
}

template <WeightFormat kFormat>
void run_format(const CudaBackend& backend, const ops::LinearArgs& args, const LinearOrder& order,
                const LinearPlan& plan) {
  const bool two = plan.out_tiles == 2;
  switch (plan.row_tiles) {
    case 1:
      return run<kFormat, 1, 1>(backend, args, order, plan);
    case 2:
      return two ? run<kFormat, 2, 2>(backend, args, order, plan)
                 : run<kFormat, 2, 1>(backend, args, order, plan);
    default:
      return two ? run<kFormat, 4, 2>(backend, args, order, plan)
                 : run<kFormat, 4, 1>(backend, args, order, plan);
  }
}

}  // namespace

void linear_narrow(const CudaBackend& backend, const ops::LinearArgs& args,
                   const LinearOrder& order, const LinearPlan& plan) {
  switch (args.weight.format) {
    case WeightFormat::kBf16:
      return run_format<WeightFormat::kBf16>(backend, args, order, plan);
    case WeightFormat::kFp8Block:
      return run_format<WeightFormat::kFp8Block>(backend, args, order, plan);
    case WeightFormat::kFp8Tensor:
      return run_format<WeightFormat::kFp8Tensor>(backend, args, order, plan);
    case WeightFormat::kFp8Channel:
      return run_format<WeightFormat::kFp8Channel>(backend, args, order, plan);
    case WeightFormat::kNvfp4:
      return run_format<WeightFormat::kNvfp4>(backend, args, order, plan);
    case WeightFormat::kMxfp4:
      return run_format<WeightFormat::kMxfp4>(backend, args, order, plan);
    case WeightFormat::kInt8Channel:
      return run_format<WeightFormat::kInt8Channel>(backend, args, order, plan);
    case WeightFormat::kInt8Group:
      return run_format<WeightFormat::kInt8Group>(backend, args, order, plan);
    case WeightFormat::kF32:
      return linear_plain(backend, args, order);
  }
}

}  // namespace tandem::cuda
