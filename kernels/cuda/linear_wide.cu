// Linears of many rows with BF16 weights: a block of 8 warps owns 128 outputs and 64 or 128 rows,
// and streams stages of 64 columns of both through shared memory, two ahead. Its sums run in the
// order of the narrow kernels: matrix instruction by matrix instruction along a strand, then
// strands, then leaves.
#include "kernels/cuda/device/leaf_tree.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_kernels.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kStages = kWideStages;
constexpr int kOuts = kWideOuts;  // of a block: four warps of 32
constexpr int kOutTiles = 2;      // of a warp, 16 outputs each
constexpr int kRowWarps = 2;
constexpr int kPieces = kWideColumns / 8;  // of 16 bytes, in a row of a stage

// The stages of K in the order of summation. A strand's last may be short; the products of columns
// beyond it are zeros, which change no sum.
struct Stages {
  int leaf = 0, strand = 0;
  std::int64_t k = 0, strand_end = 0;

  __device__ explicit Stages(const LinearOrder& order)
      : strand_end(min(order.strand_columns, order.leaf_columns)) {}

  __device__ bool done(const LinearOrder& order) const { return leaf == order.num_leaves; }
  __device__ bool ends_strand() const { return k + kWideColumns >= strand_end; }
  __device__ bool ends_leaf(const LinearOrder& order) const {
    return ends_strand() && strand == order.strands_per_leaf - 1;
  }

  __device__ void next(const LinearOrder& order) {
    if (!ends_strand()) {
      k += kWideColumns;
      return;
    }
    if (++strand == order.strands_per_leaf) {
      strand = 0;
      ++leaf;
    }
    const std::int64_t leaf_begin = leaf * order.leaf_columns;
    k = leaf_begin + strand * order.strand_columns;
    strand_end = min(k + order.strand_columns, leaf_begin + order.leaf_columns);
  }
};

// Where a piece of a row lies in a stage: odd rows change their halves over, so that the pieces
// which a quarter of a warp reads from two neighbouring rows lie in different banks.
__device__ __forceinline__ int place_of(int row, int piece) {
  return row * kPieces + (piece ^ (row % 2 * (kPieces / 2)));
}

// Rows first .. first+kRows-1 of a matrix [num_rows, .] to a stage [kRows][64]. Rows and columns
// that do not exist become zeros.
template <int kRows>
__device__ __forceinline__ void fetch_rows(const bf16* matrix, std::int64_t stride,
                                           std::int64_t first, std::int64_t num_rows,
                                           const Stages& at, uint4* shared) {
#pragma unroll
  for (int i = 0; i < kRows * kPieces / kThreads; ++i) {
    const int piece = static_cast<int>(threadIdx.x) + i * kThreads;
    const std::int64_t row = first + piece / kPieces;
    const std::int64_t column = at.k + piece % kPieces * 8;
    const bool exists = row < num_rows && column < at.strand_end;
    copy_async16(shared + place_of(piece / kPieces, piece % kPieces),
                 matrix + (exists ? row * stride + column : 0), exists);
  }
}

__device__ __forceinline__ Columns8 read_piece(const uint4* shared, int row, int piece) {
  const uint4 v = shared[place_of(row, piece)];
  return {{v.x, v.y, v.z, v.w}};
}

template <int kRowTiles, class TY>
__global__ void __launch_bounds__(kThreads)
    linear_wide_kernel(ops::LinearArgs a, LinearOrder order) {
  constexpr int kRows = kRowWarps * kRowTiles * kLinearTileRows;
  constexpr int kSums = kOutTiles * kRowTiles * 4;
  extern __shared__ uint4 stages[];  // [kStages][kOuts + kRows][kPieces]
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int g = lane / 4, t = lane % 4;
  const int out_of_warp = warp / kRowWarps * kOutTiles * kLinearTileOuts;
  const int row_of_warp = warp % kRowWarps * kRowTiles * kLinearTileRows;
  const std::int64_t first_row = std::int64_t{blockIdx.x} * kRows;
  const std::int64_t first_out = std::int64_t{blockIdx.y} * kOuts;

  const auto stage_of = [&](int number) {
    return stages + number % kStages * (kOuts + kRows) * kPieces;
  };
  Stages ahead(order);
  int fetched = 0;
  const auto fetch_next = [&] {
    if (!ahead.done(order)) {
      fetch_rows<kOuts>(static_cast<const bf16*>(a.weight.data), a.weight.in_features, first_out,
                        a.weight.out_features, ahead, stage_of(fetched));
      fetch_rows<kRows>(static_cast<const bf16*>(a.x), a.x_stride, first_row, a.num_rows, ahead,
                        stage_of(fetched) + kOuts * kPieces);
      ahead.next(order);
    }
    commit_async();  // empty groups too, so that the count of groups stays that of stages
    ++fetched;
  };
  for (int i = 0; i < kStages - 1; ++i) fetch_next();

  float strand[kOutTiles][kRowTiles][4] = {};
  float leaf[kSums] = {};
  LeafTree<kSums> tree;
  int number = 0;
  for (Stages at(order); !at.done(order); at.next(order), ++number) {
    wait_async<kStages - 2>();
    __syncthreads();  // all have the stage's data, and none still reads the one that is refilled
    fetch_next();
    const uint4* w = stage_of(number);
    const uint4* x = w + kOuts * kPieces;
#pragma unroll
    for (int half = 0; half < kWideColumns / kLinearStep; ++half) {
      const int piece = half * (kLinearStep / 8) + t;
      Columns8 rows[kRowTiles];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        rows[r] = read_piece(x, row_of_warp + r * kLinearTileRows + g, piece);
      }
#pragma unroll
      for (int o = 0; o < kOutTiles; ++o) {
        const int out = out_of_warp + o * kLinearTileOuts + g;
        const Columns8 low = read_piece(w, out, piece), high = read_piece(w, out + 8, piece);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) mma_step(strand[o][r], low, high, rows[r]);
      }
    }
    if (!at.ends_strand()) continue;
    const bool first_strand = at.strand == 0;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      float& sum = strand[i / 4 / kRowTiles][i / 4 % kRowTiles][i % 4];
      leaf[i] = first_strand ? sum : leaf[i] + sum;
      sum = 0.0f;
    }
    if (at.ends_leaf(order) && order.num_leaves > 1) tree.add(at.leaf, leaf);
  }
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    const int o = i / 4 / kRowTiles, r = i / 4 % kRowTiles, part = i % 4;
    const std::int64_t out = first_out + out_of_warp + o * kLinearTileOuts + g + part / 2 * 8;
    const std::int64_t row = first_row + row_of_warp + r * kLinearTileRows + 2 * t + part % 2;
    if (row < a.num_rows && out < a.weight.out_features) {
      store_float(leaf[i] * factor_of(a.row_factors, row),
                  static_cast<TY*>(a.y) + row * a.y_stride + out);
    }
  }
}

template <int kRowTiles>
void run(const CudaBackend& backend, const ops::LinearArgs& args, const LinearOrder& order,
         const LinearPlan& plan) {
  // Row blocks vary fastest: those that share a weight tile run together and find it in the cache.
  const dim3 grid(blocks_for(args.num_rows, kRowWarps * kRowTiles * kLinearTileRows),
                  blocks_for(args.weight.out_features, kOuts));
  with_float_type(args.y_dtype, [&](auto y) {
    launch(backend, linear_wide_kernel<kRowTiles, decltype(y)>, grid, kThreads, plan.shared_bytes,
           args, order);
  });
}

}  // namespace

void linear_wide(const CudaBackend& backend, const ops::LinearArgs& args, const LinearOrder& order,
                 const LinearPlan& plan) {
  if (plan.row_tiles == 8) return run<8>(backend, args, order, plan);
  run<4>(backend, args, order, plan);
}

}  // namespace tandem::cuda
