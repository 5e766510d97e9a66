// Parts of a softmax over the context: what a thread holds of them, how blocks leave them for each
// other in scratch memory, and how a block knows that all of them are there.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/attention_stream.cuh"
#include "kernels/cuda/attention_units.cuh"
#include "kernels/cuda/device/arrival.cuh"

namespace tandem::cuda {

// What a lane (g, t) holds of a tile of eight columns once its block's strands are joined: columns
// 2t and 2t + 1; of values, of each of the tiles of dimensions that its strand then looks after,
// dimension g (words 0, 1) and g + 8 (words 2, 3), with FP8 pages 2g and 2g + 1. All threads of
// all blocks hold the same places, so parts go to scratch memory and come back without changing
// hands.
template <class S>
struct TilePart {
  static constexpr int kDimTiles = S::kDimTiles / kStrands;
  SoftmaxPart part[2];
  float values[kDimTiles][4] = {};

  // A warp has tiles place_in_team() * S::kTiles to .. + S::kTiles - 1.
  static __device__ __forceinline__ int column(int tile, int j) {
    return tile * 8 + 2 * (lane_of_warp() % 4) + j;
  }
  static __device__ __forceinline__ int dim_tile(int m) { return strand_of_warp() * kDimTiles + m; }
  static __device__ __forceinline__ int row_of_tile() { return lane_of_warp() / 4; }

  // Dimension of words 2 i and 2 i + 1 of tile m.
  static __device__ __forceinline__ int dim(int m, int i) {
    return dim_tile(m) * 16 + (S::kCodes ? 2 * row_of_tile() + i : row_of_tile() + 8 * i);
  }

  // As they lie in memory.
  __device__ __forceinline__ void set_header(const float4& both) {
    part[0] = SoftmaxPart{both.x, both.y};
    part[1] = SoftmaxPart{both.z, both.w};
  }
  __device__ __forceinline__ void set_values(int m, const float4& four) {
    values[m][0] = four.x;
    values[m][1] = four.y;
    values[m][2] = four.z;
    values[m][3] = four.w;
  }

  __device__ __forceinline__ void add(const TilePart& more) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const Join factors = join(more.part[j], part[j]);
#pragma unroll
      for (int m = 0; m < kDimTiles; ++m) {
        values[m][j] = joined(factors, more.values[m][j], values[m][j]);
        values[m][2 + j] = joined(factors, more.values[m][2 + j], values[m][2 + j]);
      }
    }
  }
};

// Finished rows. All gates are loaded before anything is written, so that they wait for memory
// once.
template <class S>
__device__ __forceinline__ void write_tile(const ops::PagedAttentionArgs& a,
                                           const GeneratedPlan& plan, const Unit& unit, int tile,
                                           const TilePart<S>& part) {
  std::int64_t rows[2];  // of [rows * num_heads]
  bool exists[2];
  constexpr int kDimTiles = TilePart<S>::kDimTiles;
  bf16 gates[2][kDimTiles][2];
  const auto dim = [](int m, int i) { return TilePart<S>::dim(m, i); };
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int column = TilePart<S>::column(tile, j);
    exists[j] = unit.has(plan, column);
    rows[j] = std::int64_t{unit.first_row + column / plan.heads_per_unit} * a.num_heads +
              unit.first_head + column % plan.heads_per_unit;
    if (a.gate == nullptr || !exists[j]) continue;
    const auto* gate = static_cast<const bf16*>(a.gate) + rows[j] * a.gate_head_stride;
#pragma unroll
    for (int m = 0; m < kDimTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (dim(m, i) < a.pages.head_dim) gates[j][m][i] = gate[dim(m, i)];
      }
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if (!exists[j]) continue;
    const float norm = finished(1.0f, part.part[j].sum);
    bf16* out = static_cast<bf16*>(a.out) + rows[j] * a.pages.head_dim;
#pragma unroll
    for (int m = 0; m < kDimTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (dim(m, i) >= a.pages.head_dim) continue;
        float o = part.values[m][2 * i + j] * norm;
        if (a.gate != nullptr) o *= sigmoid(to_float(gates[j][m][i]));
        out[dim(m, i)] = to_bf16(o);
      }
    }
  }
}

// The bundle that a unit's span belongs to.
struct Bundle {
  int place;  // in scratch memory
  int first, spans;

  __device__ explicit Bundle(const Unit& unit) {
    const int bundle = unit.span / kBundleSpans;
    place = unit.first_bundle + bundle - unit.first_span / kBundleSpans;
    first = max(unit.first_span, bundle * kBundleSpans);
    spans = min(unit.first_span + unit.num_spans, (bundle + 1) * kBundleSpans) - first;
  }
};

// Where parts of a unit lie in scratch memory: those of a bundle's spans by number, and after them
// their join. Each is [pairs] headers of two columns, 2 kPartHeader floats for each, then [tiles of
// 16 dimensions][8][pairs] of a lane's four values.
template <class S>
struct Parts {
  float* first;  // of bundle 0 of scratch memory
  int pairs;
  int dim_tiles;        // that exist
  std::int64_t stride;  // of parts, in floats

  __device__ Parts(const ops::PagedAttentionArgs& a, const GeneratedPlan& plan)
      : first(static_cast<float*>(a.scratch)),
        pairs(paired_columns(plan.used_columns()) / 2),
        dim_tiles((a.pages.head_dim + 15) / 16),
        stride(std::int64_t{2 * pairs} * part_floats(a.pages.head_dim)) {}

  __device__ __forceinline__ float* at(int bundle, int number) const {
    return first + (std::int64_t{bundle} * kBundleParts + number) * stride;
  }

  __device__ __forceinline__ void put(float* to, int tile, const TilePart<S>& part) const {
    const int pair = tile * 4 + lane_of_warp() % 4;
    if (pair >= pairs) return;
    if (strand_of_warp() == 0 && lane_of_warp() < 4) {
      header(to, pair) =
          make_float4(part.part[0].max, part.part[0].sum, part.part[1].max, part.part[1].sum);
    }
#pragma unroll
    for (int m = 0; m < TilePart<S>::kDimTiles; ++m) {
      if (TilePart<S>::dim_tile(m) >= dim_tiles) continue;
      const float(&v)[4] = part.values[m];
      values(to, m, pair) = make_float4(v[0], v[1], v[2], v[3]);
    }
  }

  // `count` parts in ascending order, each `distance` floats behind the one before. Other blocks
  // have written them: past the first-level cache.
  __device__ __forceinline__ TilePart<S> join_all(float* from, std::int64_t distance, int count,
                                                  int tile) const {
    TilePart<S> total;
    constexpr int kAtOnce = 8;  // as registers allow: each round is a latency
#pragma unroll 1
    for (int done = 0; done < count; done += kAtOnce) {
      TilePart<S> more[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (done + i < count) get(from + (done + i) * distance, tile, more[i]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) total.add(more[i]);  // what is not there is empty
    }
    return total;
  }

 private:
  __device__ __forceinline__ float4& header(float* part, int pair) const {
    return *reinterpret_cast<float4*>(part + pair * 2 * kPartHeader);
  }
  __device__ __forceinline__ float4& values(float* part, int m, int pair) const {
    const int row = TilePart<S>::dim_tile(m) * 8 + TilePart<S>::row_of_tile();
    return *reinterpret_cast<float4*>(part + (pairs * 2 * kPartHeader) + (row * pairs + pair) * 4);
  }
  __device__ __forceinline__ void get(float* from, int tile, TilePart<S>& part) const {
    const int pair = tile * 4 + lane_of_warp() % 4;
    if (pair >= pairs) return;
    part.set_header(__ldcg(&header(from, pair)));
#pragma unroll
    for (int m = 0; m < TilePart<S>::kDimTiles; ++m) {
      if (TilePart<S>::dim_tile(m) >= dim_tiles) continue;
      part.set_values(m, __ldcg(&values(from, m, pair)));
    }
  }
};

// Whether this block is the last of `expected` to come here. What the others wrote before can then
// be read. The counter is left at 0, for the next call.
__device__ inline bool last_to_arrive(unsigned* counter, int expected) {
  __shared__ bool last;
  __syncthreads();  // all threads' parts have been written; one thread speaks for them
  if (threadIdx.x == 0) {
    last = add_in_order(counter, 1u) + 1u == static_cast<unsigned>(expected);
    if (last) *counter = 0;
  }
  __syncthreads();
  return last;
}

}  // namespace tandem::cuda
