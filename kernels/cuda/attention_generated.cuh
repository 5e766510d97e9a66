// Paged attention of generated rows, over BF16 or FP8 pages. A block owns a unit - up to 32
// columns, pairs of row and head of one KV head - and one span of its context at a time:
//   scores [keys, columns] = K Q^T,   values [dims, columns] = V^T P^T
// A strand of the block, which is a warp or two, takes every fourth step of a span for itself: it
// brings the step's keys and values, scores the keys, softens the scores and weighs the values, all
// in registers. Scores come out of the matrix units with columns side by side, as values do, so
// factors of columns are where they are needed; to become an operand probabilities are transposed
// within the warp, as two bf16 numbers each, which keep 16 bits of them. Strands are joined where a
// span ends, in their order. Columns are independent in all of this, so a column's result does not
// depend on its neighbours, nor on how many there are.
//
// The grid stays and walks over all units and spans; the rings that keys and values come through
// stay full meanwhile. A span's part goes to scratch memory; the last block to finish a span of a
// bundle joins the bundle, the last to finish a bundle joins those. A segment for which there is no
// scratch memory is worked on unit by unit, in the same order.
//
// FP8 codes become bf16 on their way from shared memory to the matrix units, where they are exact;
// a key's scale multiplies its scores, a value's its probabilities.
//
// What bounds it: on an H200 a processor's share of the bandwidth brings a step of 16 keys of 256
// dimensions, 16 KB, in 0.5 us. By counting, a warp takes about one, nearly all latencies of its
// own; eight do so at a time. With FP8 a step is 32 keys and four times the instructions, half of
// what the processor starts in that time. A short context of one sequence is all latency, at the
// start segments, page table and keys, one after the other, at the end parts: its spans are few.
#pragma once

#include "kernels/cuda/attention_operands.cuh"
#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/attention_stream.cuh"
#include "kernels/cuda/attention_units.cuh"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::cuda {

// A step's scores: lane (g, t) has, of every 16 keys, g and g + 8 in columns 2t and 2t + 1.
template <class S>
using Scores = float[S::kKeyTiles][S::kTiles][4];
// Its probabilities as operands: of every 16 keys {high, high of the upper eight, low, low of
// those}.
template <class S>
using Weights = uint4[S::kKeyTiles][S::kTiles];

template <class S>
__device__ __forceinline__ void score_step(uint32_t keys, const Queries<S>& queries,
                                           Scores<S>& scores) {
  Scores<S> halves[2] = {};  // two chains: one instruction need not wait for the last
  KeyOperands<S> k(keys);
#pragma unroll
  for (int i = 0; i < S::kScoreGroups; ++i) {
    uint32_t q[S::kTiles][4];
    queries.get(i, q);
#pragma unroll
    for (int tile = 0; tile < S::kKeyTiles; ++tile) {
      k.load_all(tile, i);
#pragma unroll
      for (int chain = 0; chain < 2; ++chain) {
        k.load(tile, i, chain);
#pragma unroll
        for (int c = 0; c < S::kTiles; ++c) {
          mma_m16n8k16(halves[chain][tile][c], k.words[0], k.words[1], k.words[2], k.words[3],
                       q[c][2 * chain], q[c][2 * chain + 1]);
        }
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < S::kKeyTiles; ++tile) {
#pragma unroll
    for (int c = 0; c < S::kTiles; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scores[tile][c][i] = halves[0][tile][c][i] + halves[1][tile][c][i];
    }
  }
}

// The running softmax of a warp's columns over the steps of its strand. All lanes of a column know
// its largest score; each sums its own keys, until the end.
template <class S>
struct Softmax {
  SoftmaxPart part[S::kTiles][2];
  int end[S::kTiles][2];  // the column sees indices below; 0: it does not exist

  __device__ Softmax(const GeneratedPlan& plan, const Unit& unit) {
#pragma unroll
    for (int c = 0; c < S::kTiles; ++c) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int column = TilePart<S>::column(place_in_team() * S::kTiles + c, j);
        end[c][j] =
            unit.has(plan, column) ? unit.first_position + column / plan.heads_per_unit + 1 : 0;
      }
    }
  }

  // Scores become probabilities relative to the running maximum, in FP8 times the values' scales;
  // `factors` are those of what was weighed before.
  __device__ __forceinline__ void soften(const ops::PagedAttentionArgs& a, const float* scales,
                                         int first_key, Scores<S>& scores, Weights<S>& weights,
                                         float (&factors)[S::kTiles][2]) {
    const int g = lane_of_warp() / 4;
#pragma unroll
    for (int c = 0; c < S::kTiles; ++c) {
      float largest[2] = {-kInfinity, -kInfinity};
#pragma unroll
      for (int tile = 0; tile < S::kKeyTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = tile * 16 + i / 2 * 8 + g, j = i % 2;
          const float factor = S::kCodes ? a.scale * kLog2E * scales[key] : a.scale * kLog2E;
          const int index = first_key + key;
          const bool seen = index >= a.first_index && index < end[c][j];
          float& score = scores[tile][c][i];
          score = seen ? score * factor : -kInfinity;
          largest[j] = fmaxf(largest[j], score);
        }
      }
#pragma unroll
      for (int distance = 4; distance < kWarp; distance *= 2) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          largest[j] = fmaxf(largest[j], __shfl_xor_sync(kAllLanes, largest[j], distance));
        }
      }
      float sums[2] = {};
#pragma unroll
      for (int j = 0; j < 2; ++j) factors[c][j] = raise(largest[j], part[c][j]);
#pragma unroll
      for (int tile = 0; tile < S::kKeyTiles; ++tile) {
        float p[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          p[i] = exp2f(scores[tile][c][i] - base(part[c][i % 2]));
          sums[i % 2] += p[i];
          if constexpr (S::kCodes) p[i] *= scales[S::kStepKeys + tile * 16 + i / 2 * 8 + g];
        }
        const SplitPair lower = split_pair(p[0], p[1]), upper = split_pair(p[2], p[3]);
        weights[tile][c] = {transpose_matrix(lower.high), transpose_matrix(upper.high),
                            transpose_matrix(lower.low), transpose_matrix(upper.low)};
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        part[c][j].sum = fmaf(part[c][j].sum, factors[c][j], sums[j]);
      }
    }
  }

  // {largest score, sum} of a lane's two columns of tile c, of all keys.
  __device__ __forceinline__ float4 header(int c) const {
    float sums[2] = {part[c][0].sum, part[c][1].sum};
#pragma unroll
    for (int distance = 4; distance < kWarp; distance *= 2) {
#pragma unroll
      for (int j = 0; j < 2; ++j) sums[j] += __shfl_xor_sync(kAllLanes, sums[j], distance);
    }
    return make_float4(part[c][0].max, sums[0], part[c][1].max, sums[1]);
  }
};

// A warp's values: its columns, all dimensions; words as in TilePart.
template <class S>
struct Values {
  float words[S::kDimTiles][S::kTiles][4] = {};

  // Brings the columns to new maxima. Times 1 changes no bit.
  __device__ __forceinline__ void rescale(const float (&factors)[S::kTiles][2]) {
#pragma unroll
    for (int c = 0; c < S::kTiles; ++c) {
      const bool changes = factors[c][0] != 1.0f || factors[c][1] != 1.0f;
      if (!__any_sync(kAllLanes, changes)) continue;
#pragma unroll
      for (int m = 0; m < S::kDimTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) words[m][c][i] *= factors[c][i % 2];
      }
    }
  }

  // Adds a step's values.
  __device__ __forceinline__ void weigh(uint32_t values, const Weights<S>& weights) {
    constexpr int kAtOnce = 4 / S::kTiles;  // products of a tile wait for each other
    ValueOperands<S> v(values);
#pragma unroll
    for (int tile = 0; tile < S::kKeyTiles; ++tile) {
#pragma unroll
      for (int first = 0; first < S::kDimTiles; first += kAtOnce) {
        uint32_t of_dims[kAtOnce][4];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) v.load(tile, first + i, of_dims[i]);
#pragma unroll
        for (int low = 0; low < 2; ++low) {
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            const uint32_t(&d)[4] = of_dims[i];
#pragma unroll
            for (int c = 0; c < S::kTiles; ++c) {
              const uint4& w = weights[tile][c];
              mma_m16n8k16(words[first + i][c], d[0], d[1], d[2], d[3], low ? w.z : w.x,
                           low ? w.w : w.y);
            }
          }
        }
      }
    }
  }
};

// What a unit's end of a span leaves behind, of one tile of columns after the other: strands leave
// their values for each other in the slots that they have used last. take(tile, part) is called by
// the warps whose tile it is.
template <class S, class Take>
__device__ __forceinline__ void join_strands(const StrandStream<S>& stream, float4* headers,
                                             const Softmax<S>& softmax, const Values<S>& values,
                                             const Take& take) {
  const int lane = lane_of_warp(), strand = strand_of_warp();
  if constexpr (S::kTeam > 1) meet_team<S>();  // all of it have used the slot
#pragma unroll
  for (int c = 0; c < S::kTiles; ++c) {
#pragma unroll 1
    for (int place = 0; place < S::kTeam; ++place) {
      const bool own = place == place_in_team();
      if (c > 0 || place > 0) __syncthreads();  // the tile before has been read
      if (own) {
        const float4 header = softmax.header(c);
        if (lane < 4) headers[strand * 4 + lane] = header;
        float4* to = stream.slot_of(strand) + lane;
#pragma unroll
        for (int m = 0; m < S::kDimTiles; ++m) {
          const float(&v)[4] = values.words[m][c];
          to[m * kWarp] = make_float4(v[0], v[1], v[2], v[3]);
        }
      }
      __syncthreads();  // all strands' values are there
      if (!own) continue;
      TilePart<S> joined;
#pragma unroll
      for (int from = 0; from < kStrands; ++from) {
        TilePart<S> more;
        more.set_header(headers[from * 4 + lane % 4]);
#pragma unroll
        for (int m = 0; m < TilePart<S>::kDimTiles; ++m) {
          more.set_values(m, stream.slot_of(from)[TilePart<S>::dim_tile(m) * kWarp + lane]);
        }
        joined.add(more);
      }
      take(c, joined);
    }
  }
}

// After a span that others share has been put into scratch memory: the joins that this completes,
// of its bundle and then of all bundles.
template <class S>
__device__ __forceinline__ void join_parts(const ops::PagedAttentionArgs& a,
                                           const GeneratedPlan& plan, const Unit& unit,
                                           unsigned* arrivals) {
  const Parts<S> parts(a, plan);
  const Bundle bundle(unit);
  unsigned* counter = arrivals + bundle.place;
  float* from = parts.at(bundle.place, bundle.first % kBundleSpans);
  std::int64_t distance = parts.stride;
  int count = bundle.spans;
  bool last_level = unit.num_bundles == 1;
  const int first_tile = place_in_team() * S::kTiles;
#pragma unroll 1
  while (last_to_arrive(counter, count)) {
#pragma unroll 1
    for (int tile = first_tile; tile < first_tile + S::kTiles; ++tile) {
      const TilePart<S> joined = parts.join_all(from, distance, count, tile);
      if (last_level) {
        write_tile(a, plan, unit, tile, joined);
      } else {
        parts.put(parts.at(bundle.place, kBundleSpans), tile, joined);
      }
    }
    if (last_level) return;
    last_level = true;
    counter = arrivals + plan.bundles + unit.first_bundle;
    from = parts.at(unit.first_bundle, kBundleSpans);
    distance = kBundleParts * parts.stride;
    count = unit.num_bundles;
  }
}

// The spans of a unit that one block takes alone, joined as blocks that share them do. One object
// for each thread; loops over its parts stay loops, so that it lies in local memory, out of the way
// of the registers that the products need.
template <class S>
struct AloneJoin {
  TilePart<S> joins[2 * S::kTiles];  // of each tile the bundle's, then all bundles'

  __device__ __forceinline__ void begin_unit() {
#pragma unroll 1
    for (int i = 0; i < 2 * S::kTiles; ++i) joins[i] = TilePart<S>{};
  }

  __device__ __forceinline__ void add(const Unit& unit, int c, TilePart<S> part) {
    const bool ends_bundle = unit.ends() || (unit.span + 1) % kBundleSpans == 0;
#pragma unroll 1
    for (int level = 0; level < 2; ++level) {
      TilePart<S>& to = joins[2 * c + level];
      to.add(part);
      if (!ends_bundle) return;
      part = to;
      if (level == 0) to = TilePart<S>{};
    }
  }

  __device__ __forceinline__ void write(const ops::PagedAttentionArgs& a, const GeneratedPlan& plan,
                                        const Unit& unit) const {
#pragma unroll 1
    for (int c = 0; c < S::kTiles; ++c) {
      write_tile(a, plan, unit, place_in_team() * S::kTiles + c, joins[2 * c + 1]);
    }
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    attention_generated_kernel(const __grid_constant__ ops::PagedAttentionArgs a,
                               const __grid_constant__ GeneratedPlan plan, unsigned* arrivals) {
  extern __shared__ __align__(128) char shared[];
  allow_next_kernel();
  wait_for_previous_kernel();
  StrandStream<S> stream(a, plan, shared);
  AloneJoin<S> alone;
  auto* headers = reinterpret_cast<float4*>(shared + plan.shared.headers);
  for (; stream.unit().num_rows > 0; stream.next_unit()) {
    const Unit& unit = stream.unit();
    const int end = unit.end();
    Queries<S> queries;
    Softmax<S> softmax(plan, unit);
    Values<S> values;
    Weights<S> weights = {};
    int round = unit.first_key();
    bool begins = true, weighs = false;
#pragma unroll 1
    do {
      stream.next(begins);
      if (begins) queries.begin(stream.queries(), plan.used_columns());
      // Strands go through as many steps: one more than there are, for some.
      const int key = round + strand_of_warp() * S::kStepKeys;
      if (weighs) {
        if (key < end) values.weigh(stream.rows(), weights);
        round += S::kRoundKeys;
      } else {
        if (key < end) {
          Scores<S> scores;
          float factors[S::kTiles][2];
          score_step(stream.rows(), queries, scores);
          softmax.soften(a, stream.scales(), key, scores, weights, factors);
          values.rescale(factors);
        }
        stream.next_scales();
      }
      begins = false;
      weighs = !weighs;
    } while (weighs || round < end);

    if (unit.shared()) {
      const Parts<S> parts(a, plan);
      float* own = parts.at(Bundle(unit).place, unit.span % kBundleSpans);
      join_strands(stream, headers, softmax, values, [&](int c, const TilePart<S>& part) {
        parts.put(own, place_in_team() * S::kTiles + c, part);
      });
      join_parts<S>(a, plan, unit, arrivals);
    } else {
      if (unit.span == unit.first_span) alone.begin_unit();
      join_strands(stream, headers, softmax, values,
                   [&](int c, const TilePart<S>& part) { alone.add(unit, c, part); });
      if (unit.ends()) alone.write(a, plan, unit);
      __syncthreads();  // strands' values have been read
    }
  }
}

template <class S>
void run_generated(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                   const GeneratedPlan& plan) {
  launch_overlapping(backend, attention_generated_kernel<S>, static_cast<unsigned>(plan.grid),
                     S::kThreads, plan.shared.bytes, args, plan, backend.arrivals());
}

template <int kDim, class TPage>
void run_generated(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                   const GeneratedPlan& plan) {
  switch (plan.columns) {
    case 8:
      return run_generated<Shape<kDim, 8, TPage>>(backend, args, plan);
    case 16:
      return run_generated<Shape<kDim, 16, TPage>>(backend, args, plan);
    default:
      return run_generated<Shape<kDim, 32, TPage>>(backend, args, plan);
  }
}

template <class TPage>
void attention_generated_over(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                              const AttentionSize& size) {
  const GeneratedPlan plan =
      plan_generated(size, {.num_processors = backend.limits().num_processors,
                            .shared_bytes_per_block = backend.limits().shared_bytes_per_block});
  if (padded_head_dim(size.head_dim) == 128) return run_generated<128, TPage>(backend, args, plan);
  run_generated<256, TPage>(backend, args, plan);
}

}  // namespace tandem::cuda
