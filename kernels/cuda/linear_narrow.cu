// Linears of few rows, near the bandwidth of the weights. A block owns 16 or 32 outputs and 8 to 32
// rows of x; its warps share the strands of K, whose sums meet in shared memory and are added there
// in their fixed order. Rows that do not exist are zeros and take part like others: one row and
// eight run the same instructions. Two tiles of outputs share what is loaded of x, which from two
// tiles of rows on is as much as the weights.
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/weights.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_kernels.h"

namespace tandem::cuda {
namespace {

using ops::WeightFormat;

// 16-byte loads of weights that a lane has under way.
constexpr int kLoadsInFlight = 8;

template <WeightFormat kFormat, int kRowTiles>
inline constexpr int kOutTiles = narrow_out_tiles(kFormat, kRowTiles);

// Columns of a step: what the four lanes of a row load.
template <WeightFormat kFormat>
inline constexpr int kLaneColumns = lane_columns(kFormat);
template <WeightFormat kFormat>
inline constexpr int kStepColumns = 4 * kLaneColumns<kFormat>;

// Columns k .. k+7 of one row of x; zeros for rows that do not exist.
__device__ __forceinline__ Columns8 load_x(const bf16* row, std::int64_t k, bool aligned) {
  Columns8 c{};
  if (row == nullptr) return c;
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

struct NarrowOutput {
  ops::LinearWeight weight;
  void* y;
  DType y_dtype;
  std::int64_t y_stride;
  unsigned first_block;
};

// Linears of the same x, one after the other along the grid.
struct NarrowArgs {
  const bf16* x;
  std::int64_t x_stride;
  int num_rows;
  const float* row_factors;
  int num_outputs;
  NarrowOutput outputs[ops::kMaxLinearGroup];
};

// What one lane knows of its tiles.
template <WeightFormat kFormat, int kRowTiles>
struct Lane {
  using Weight = WeightRows<kFormat>;
  static constexpr int kRows =
      2 * kOutTiles<kFormat, kRowTiles>;  // of weights: g, g + 8, g + 16, ...

  int g, t;  // see device/mma.cuh
  int first_group;
  std::int64_t out[kRows];            // the last output again beyond the edge
  const std::uint8_t* w[kRows];       // their codes
  const std::uint8_t* scales[kRows];  // four-bit formats
  std::int64_t first_scale[kRows];    // formats with scales over columns: index of the row's first
  const bf16* x[kRowTiles];           // rows g, g + 8, ...; nullptr beyond the edge
  bool x_is_aligned;

  __device__ Lane(const NarrowArgs& args, const ops::LinearWeight& weight, unsigned block) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    g = lane / 4;
    t = lane % 4;
    first_group = cuda::first_group<Weight>(t);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      out[i] = min(std::int64_t{block} * (8 * kRows) + g + 8 * i, weight.out_features - 1);
      w[i] = Weight::row(weight, out[i]);
      if constexpr (is_nibble(kFormat)) scales[i] = Weight::scale_row(weight, out[i]);
      if constexpr (has_column_scales(kFormat)) {
        const auto per_row = divide_up(weight.in_features, weight.block_cols);
        first_scale[i] = static_cast<int>(out[i]) / weight.block_rows * per_row;
      }
    }
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      const std::int64_t row = (std::int64_t{blockIdx.y} * kRowTiles + i) * kLinearTileRows + g;
      x[i] = row < args.num_rows ? args.x + row * args.x_stride : nullptr;
    }
    x_is_aligned = reinterpret_cast<std::uintptr_t>(args.x) % 16 == 0 && args.x_stride % 8 == 0;
  }
  __device__ typename Weight::Scales load_scales(int i, std::int64_t k) const {
    return Weight::scales(is_nibble(kFormat) ? scales[i] : nullptr, k);
  }
};

// [weight tile][row tile]
template <WeightFormat kFormat, int kRowTiles>
struct Sums {
  float of[kOutTiles<kFormat, kRowTiles>][kRowTiles][4] = {};
};

// A lane's columns of x of one step, from its first group on.
template <WeightFormat kFormat, int kRowTiles>
struct StepRows {
  Columns8 x[WeightRows<kFormat>::kGroups][kRowTiles];

  __device__ __forceinline__ void load(const Lane<kFormat, kRowTiles>& lane, std::int64_t k,
                                       bool inside) {
#pragma unroll
    for (int j = 0; j < WeightRows<kFormat>::kGroups; ++j) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        x[j][r] = inside ? load_x(lane.x[r], k + 8 * (j ^ lane.first_group), lane.x_is_aligned)
                         : Columns8{};
      }
    }
  }
};

// The products of the columns that this lane and its neighbours have loaded.
template <WeightFormat kFormat, int kRowTiles>
__device__ __forceinline__ void multiply(
    const Lane<kFormat, kRowTiles>& lane, const uint4 (&raw)[Lane<kFormat, kRowTiles>::kRows],
    const typename WeightRows<kFormat>::Scales (&scales)[Lane<kFormat, kRowTiles>::kRows],
    const StepRows<kFormat, kRowTiles>& rows, Sums<kFormat, kRowTiles>& sums) {
  using Weight = WeightRows<kFormat>;
  constexpr int kRows = Lane<kFormat, kRowTiles>::kRows;
  uint4 codes[kRows];
  typename Weight::Factors factors[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    codes[i] = from_group<Weight>(raw[i], lane.first_group);
    factors[i] = Weight::factors(scales[i], lane.first_group);
  }
#pragma unroll
  for (int j = 0; j < Weight::kGroups; ++j) {
#pragma unroll
    for (int o = 0; o < kOutTiles<kFormat, kRowTiles>; ++o) {
      const Columns8 low = Weight::columns(codes[2 * o], factors[2 * o], j);
      const Columns8 high = Weight::columns(codes[2 * o + 1], factors[2 * o + 1], j);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) mma_step(sums.of[o][r], low, high, rows.x[j][r]);
    }
  }
}

// The scale of the columns of weight row i under the index-th scale.
template <WeightFormat kFormat, int kRowTiles>
__device__ __forceinline__ float column_scale(const ops::LinearWeight& w,
                                              const Lane<kFormat, kRowTiles>& lane, int i,
                                              int index) {
  return scale_value(w.scales, w.scale_dtype, lane.first_scale[i] + index);
}

// sums += part * the scales of its weight rows
template <WeightFormat kFormat, int kRowTiles>
__device__ __forceinline__ void add_scaled(const float (&scales)[Lane<kFormat, kRowTiles>::kRows],
                                           const Sums<kFormat, kRowTiles>& part,
                                           Sums<kFormat, kRowTiles>& sums) {
#pragma unroll
  for (int o = 0; o < kOutTiles<kFormat, kRowTiles>; ++o) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums.of[o][r][i] = fmaf(part.of[o][r][i], scales[2 * o + i / 2], sums.of[o][r][i]);
      }
    }
  }
}

// Whole steps from `begin` on, kSteps at a time, so that as many loads are under way; returns where
// it ended. kScaleSteps: steps under one scale, which is applied to their sum; 0: none.
template <WeightFormat kFormat, int kRowTiles, int kSteps, int kScaleSteps>
__device__ __forceinline__ std::int64_t run_steps(const ops::LinearWeight& weight,
                                                  const Lane<kFormat, kRowTiles>& lane,
                                                  std::int64_t begin, std::int64_t end,
                                                  Sums<kFormat, kRowTiles>& sums) {
  using Weight = WeightRows<kFormat>;
  constexpr int kRows = Lane<kFormat, kRowTiles>::kRows;
  constexpr int kColumns = kStepColumns<kFormat>;
  constexpr int kScales = kScaleSteps == 0 ? 1 : kSteps / kScaleSteps;
  // Steps whose x is loaded ahead: as many as leave registers for many warps.
  constexpr int kAhead = Weight::kGroups == 1 ? kSteps : Weight::kGroups == 2 ? 1 : 0;
  for (; begin + kSteps * kColumns <= end; begin += kSteps * kColumns) {
    const std::int64_t k = begin + kLaneColumns<kFormat> * lane.t;
    uint4 raw[kSteps][kRows];
    typename Weight::Scales scales[kSteps][kRows];
    float column_scales[kScales][kRows];
    StepRows<kFormat, kRowTiles> rows[kSteps];
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        raw[s][i] = load_once(Weight::address(lane.w[i], k + s * kColumns));
        scales[s][i] = lane.load_scales(i, k + s * kColumns);
      }
    }
#pragma unroll
    for (int s = 0; s < kAhead; ++s) rows[s].load(lane, k + s * kColumns, true);
    if constexpr (kScaleSteps > 0) {
      const auto index = static_cast<int>(begin) / (kScaleSteps * kColumns);
#pragma unroll
      for (int c = 0; c < kScales; ++c) {
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          column_scales[c][i] = column_scale<kFormat, kRowTiles>(weight, lane, i, index + c);
        }
      }
    }
    Sums<kFormat, kRowTiles> part;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (s + kAhead < kSteps) rows[s + kAhead].load(lane, k + (s + kAhead) * kColumns, true);
      if constexpr (kScaleSteps == 0) {
        multiply<kFormat, kRowTiles>(lane, raw[s], scales[s], rows[s], sums);
      } else {
        if (s % kScaleSteps == 0) part = {};
        multiply<kFormat, kRowTiles>(lane, raw[s], scales[s], rows[s], part);
        if ((s + 1) % kScaleSteps == 0) {
          add_scaled<kFormat, kRowTiles>(column_scales[s / kScaleSteps], part, sums);
        }
      }
    }
  }
  return begin;
}

// Columns [begin, end) without scales over columns; the last step may be short.
template <WeightFormat kFormat, int kRowTiles>
__device__ __forceinline__ void run_range(const ops::LinearWeight& weight,
                                          const Lane<kFormat, kRowTiles>& lane, std::int64_t begin,
                                          std::int64_t end, Sums<kFormat, kRowTiles>& sums) {
  using Weight = WeightRows<kFormat>;
  constexpr int kRows = Lane<kFormat, kRowTiles>::kRows;
  begin = run_steps<kFormat, kRowTiles, kLoadsInFlight / kRows, 0>(weight, lane, begin, end, sums);
  begin = run_steps<kFormat, kRowTiles, 1, 0>(weight, lane, begin, end, sums);
  if (begin >= end) return;
  const std::int64_t k = begin + kLaneColumns<kFormat> * lane.t;
  uint4 raw[kRows] = {};
  typename Weight::Scales scales[kRows] = {};
  if (k < end) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      raw[i] = load_once(Weight::address(lane.w[i], k));
      scales[i] = lane.load_scales(i, k);
    }
  }
  StepRows<kFormat, kRowTiles> rows;
  rows.load(lane, k, k < end);
  multiply<kFormat, kRowTiles>(lane, raw, scales, rows, sums);
}

template <WeightFormat kFormat, int kRowTiles>
__device__ __forceinline__ void run_strand(const ops::LinearWeight& weight,
                                           const LinearOrder& order,
                                           const Lane<kFormat, kRowTiles>& lane, std::int64_t begin,
                                           std::int64_t end, Sums<kFormat, kRowTiles>& sums) {
  if constexpr (has_column_scales(kFormat)) {
    // The scales that checkpoints use cover 128 columns.
    constexpr int kScaleSteps = 128 / kStepColumns<kFormat>;
    constexpr int kSteps = kLoadsInFlight / Lane<kFormat, kRowTiles>::kRows;
    if (order.scale_columns == 128) {
      begin = run_steps<kFormat, kRowTiles, kSteps, kScaleSteps>(weight, lane, begin, end, sums);
      begin =
          run_steps<kFormat, kRowTiles, kScaleSteps, kScaleSteps>(weight, lane, begin, end, sums);
    }
    for (; begin < end; begin += order.scale_columns) {
      Sums<kFormat, kRowTiles> part;
      run_range<kFormat, kRowTiles>(weight, lane, begin, min(end, begin + order.scale_columns),
                                    part);
      float scales[Lane<kFormat, kRowTiles>::kRows];
#pragma unroll
      for (int i = 0; i < Lane<kFormat, kRowTiles>::kRows; ++i) {
        scales[i] = column_scale<kFormat, kRowTiles>(weight, lane, i,
                                                     static_cast<int>(begin) / order.scale_columns);
      }
      add_scaled<kFormat, kRowTiles>(scales, part, sums);
    }
  } else {
    run_range<kFormat, kRowTiles>(weight, lane, begin, end, sums);
    if constexpr (kFormat != WeightFormat::kBf16) {
#pragma unroll
      for (int o = 0; o < kOutTiles<kFormat, kRowTiles>; ++o) {
        constexpr float kOwn = WeightRows<kFormat>::kSumFactor;
        const float low = sum_factor<kFormat>(weight, lane.out[2 * o]);
        const float high = sum_factor<kFormat>(weight, lane.out[2 * o + 1]);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
          for (int i = 0; i < 4; ++i) sums.of[o][r][i] *= kOwn;
#pragma unroll
          for (int i = 0; i < 4; ++i) sums.of[o][r][i] *= i < 2 ? low : high;
        }
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

template <WeightFormat kFormat, int kRowTiles>
__global__ void __launch_bounds__(narrow_max_warps(kRowTiles) * kWarp,
                                  kFormat == WeightFormat::kBf16 && kRowTiles == 1 ? 2 : 1)
    linear_narrow_kernel(const __grid_constant__ NarrowArgs args, LinearOrder order) {
  constexpr int kRows = kLinearTileRows * kRowTiles;
  constexpr int kOuts = kLinearTileOuts * kOutTiles<kFormat, kRowTiles>;
  constexpr int kTile = kOuts * kRows;
  extern __shared__ float strand_sums[];  // [strands][rows][outputs]
  int which = 0;
  while (which + 1 < args.num_outputs && blockIdx.x >= args.outputs[which + 1].first_block) ++which;
  const NarrowOutput& output = args.outputs[which];
  const unsigned block = blockIdx.x - output.first_block;
  const Lane<kFormat, kRowTiles> lane(args, output.weight, block);
  const int warps = static_cast<int>(blockDim.x / kWarp);
  const int first_strand = static_cast<int>(threadIdx.x / kWarp);
  const auto strand_begin = [&order](int strand) {
    const int leaf = strand / order.strands_per_leaf;
    return leaf * order.leaf_columns +
           (strand - leaf * order.strands_per_leaf) * order.strand_columns;
  };
  // Weights do not depend on the kernel before: their first lines come while it ends.
  allow_next_kernel();
  using Weight = WeightRows<kFormat>;
#pragma unroll
  for (int i = 0; i < Lane<kFormat, kRowTiles>::kRows; ++i) {
    const std::uint8_t* line = Weight::address(lane.w[i], strand_begin(first_strand)) + lane.t * 64;
    if (line < Weight::address(lane.w[i], output.weight.in_features)) prefetch_line(line);
  }
  wait_for_previous_kernel();
  for (int strand = first_strand; strand < order.num_strands(); strand += warps) {
    const int leaf = strand / order.strands_per_leaf;
    const std::int64_t begin = strand_begin(strand);
    const std::int64_t end = min(begin + order.strand_columns, (leaf + 1) * order.leaf_columns);
    Sums<kFormat, kRowTiles> sums;
    run_strand<kFormat, kRowTiles>(output.weight, order, lane, begin, end, sums);
    float* to = strand_sums + strand * kTile;
#pragma unroll
    for (int o = 0; o < kOutTiles<kFormat, kRowTiles>; ++o) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = r * kLinearTileRows + 2 * lane.t + i % 2;
          to[row * kOuts + o * kLinearTileOuts + lane.g + i / 2 * 8] = sums.of[o][r][i];
        }
      }
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kTile; i += static_cast<int>(blockDim.x)) {
    const std::int64_t row = std::int64_t{blockIdx.y} * kRows + i / kOuts;
    const std::int64_t out = std::int64_t{block} * kOuts + i % kOuts;
    if (row >= args.num_rows || out >= output.weight.out_features) continue;
    const float sum = add_strands(order, strand_sums + i, kTile) * factor_of(args.row_factors, row);
    const std::int64_t at = row * output.y_stride + out;
    if (output.y_dtype == DType::kF32) {
      static_cast<float*>(output.y)[at] = sum;
    } else {
      store_float(sum, static_cast<bf16*>(output.y) + at);
    }
  }
}

template <WeightFormat kFormat, int kRowTiles>
void run(const CudaBackend& backend, NarrowArgs args, const LinearOrder& order,
         const LinearPlan& plan) {
  unsigned blocks = 0;
  for (int i = 0; i < args.num_outputs; ++i) {
    auto& output = args.outputs[i];
    output.first_block = blocks;
    blocks +=
        blocks_for(output.weight.out_features, kLinearTileOuts * kOutTiles<kFormat, kRowTiles>);
  }
  const dim3 grid(blocks, blocks_for(args.num_rows, kLinearTileRows * kRowTiles));
  const auto kernel = linear_narrow_kernel<kFormat, kRowTiles>;
  static const int registers = registers_of(kernel);
  const int warps = narrow_warps(
      order.num_strands(), static_cast<int>(grid.x * grid.y), narrow_max_warps(kRowTiles),
      {.registers = registers,
       .shared_bytes = plan.shared_bytes,
       .num_processors = backend.limits().num_processors,
       .shared_bytes_per_processor = backend.limits().shared_bytes_per_block});
  launch_overlapping(backend, kernel, grid, static_cast<unsigned>(warps * kWarp), plan.shared_bytes,
                     args, order);
}

template <WeightFormat kFormat>
void run_rows(const CudaBackend& backend, const NarrowArgs& args, const LinearOrder& order,
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

void linear_narrow(const CudaBackend& backend, std::span<const ops::LinearArgs> group,
                   const LinearOrder& order, const LinearPlan& plan) {
  const ops::LinearArgs& first = group.front();
  NarrowArgs args{.x = static_cast<const bf16*>(first.x),
                  .x_stride = first.x_stride,
                  .num_rows = first.num_rows,
                  .row_factors = first.row_factors,
                  .num_outputs = static_cast<int>(group.size()),
                  .outputs = {}};
  for (std::size_t i = 0; i < group.size(); ++i) {
    args.outputs[i] = {group[i].weight, group[i].y, group[i].y_dtype, group[i].y_stride, 0};
  }
  with_code_format(first.weight.format,
                   [&](auto format) { run_rows<format()>(backend, args, order, plan); });
}

}  // namespace tandem::cuda
