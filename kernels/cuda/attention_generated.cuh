// Paged attention of generated rows, over BF16 or FP8 pages. A block owns a unit - up to 32
// columns, pairs of row and head of one KV head - and one span of its context at a time:
//   scores [keys, columns] = K Q^T,   values [dims, columns] = V^T P^T
// A step is 32 or 64 keys. Its four warps share the keys while they are scored; the scores meet in
// shared memory, and with them each warp weighs the values of all keys in its share of the
// dimensions. So nothing is joined inside a block, and a warp's values are few registers. The
// probabilities go to the matrix units as two bf16 numbers, which keep 16 bits of them. Columns are
// independent there, so a column's result does not depend on its neighbours.
//
// The grid stays and walks over all units and spans; the ring that keys and values come through
// stays full meanwhile. A span's part goes to scratch memory; the last block to finish a span of a
// bundle joins the bundle, the last to finish a bundle joins those. A segment for which there is no
// scratch memory is worked on unit by unit, in the same order.
//
// FP8 codes become bf16 on their way from shared memory to the matrix units, where they are exact;
// a key's scale multiplies its scores, a value's its probabilities. Every code is read by one warp.
//
// What bounds it: on an H200 a processor's share of the bandwidth brings a step's 32 KB in 0.9 us.
// A block takes about half a microsecond of latencies for a step, one for handing over a span's
// part, two for a join; with two or three blocks on a processor, and a ring that goes on filling,
// none of them leaves the memory idle. A short context of one sequence is all latency, at the start
// segments, page table and keys, one after the other, at the end parts: its spans are few.
#pragma once

#include "kernels/cuda/attention_operands.cuh"
#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/attention_stream.cuh"
#include "kernels/cuda/attention_units.cuh"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::cuda {

// What a stage of the ring holds.
struct Stage {
  const uint4* pieces;
  const float* scales;  // FP8: of its keys or values
};

// A warp's scores of a step, of 16 keys and a part of the dimensions, to shared memory.
template <class S>
__device__ __forceinline__ void score_step(const Stage& stage, const Queries<S>& q, float* scores) {
  const int lane = lane_of_warp(), warp = warp_of_block();
  const int first_key = warp % S::kKeyTiles * 16, part = warp / S::kKeyTiles;
  float sums[2][S::kTiles][4] = {};  // two chains: one instruction need not wait for the last
#pragma unroll
  for (int i = 0; i < S::kScoreGroups; ++i) {
    KeyOperands<S> k;
    k.load_all(stage.pieces, first_key, part, i);
#pragma unroll
    for (int chain = 0; chain < 2; ++chain) {
      k.load(stage.pieces, first_key, part, i, chain);
#pragma unroll
      for (int c = 0; c < S::kTiles; ++c) {
        mma_m16n8k16(sums[chain][c], k.words[0], k.words[1], k.words[2], k.words[3],
                     q.words[c][i][2 * chain], q.words[c][i][2 * chain + 1]);
      }
    }
  }
  float scale[2];
  if constexpr (S::kCodes) {
    scale[0] = stage.scales[first_key + lane / 4];
    scale[1] = stage.scales[first_key + lane / 4 + 8];
  }
#pragma unroll
  for (int c = 0; c < S::kTiles; ++c) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = part * S::kColumns + c * 8 + 2 * (lane % 4) + j;
      float* to = scores + column * S::kScorePitch + first_key + lane / 4;
      const float low = sums[0][c][j] + sums[1][c][j];
      const float high = sums[0][c][2 + j] + sums[1][c][2 + j];
      to[0] = S::kCodes ? low * scale[0] : low;
      to[8] = S::kCodes ? high * scale[1] : high;
    }
  }
}

// The softmax of one column by four lanes: lane (g, t) has column g of a tile, and of every 16 keys
// 2t, 2t + 1, 2t + 8 and 2t + 9, which is how the second product takes its operand.
template <class S>
struct Softmax {
  SoftmaxPart part;  // sum of this lane's keys, until the end
  int end;           // the column sees indices below; 0: it does not exist

  __device__ Softmax(const GeneratedPlan& plan, const Unit& unit, int tile) {
    const int column = tile * 8 + lane_of_warp() / 4;
    end = unit.has(plan, column) ? unit.first_position + column / plan.heads_per_unit + 1 : 0;
  }

  // Scores become probabilities relative to the running maximum, for the operands {high, high of
  // the upper eight keys, low, low of those}; FP8: times the values' scales. Returns the factor of
  // what was weighed before.
  __device__ __forceinline__ float soften(const ops::PagedAttentionArgs& a, const float* scores,
                                          const float* scales, int tile, int first_key,
                                          uint4 (&weights)[S::kKeyTiles]) {
    const int lane = lane_of_warp();
    const float* from = scores + (tile * 8 + lane / 4) * S::kScorePitch + lane % 4 * 2;
    const float factor = a.scale * kLog2E;
    float p[S::kKeyTiles][4];
    float largest = -kInfinity;
#pragma unroll
    for (int k = 0; k < S::kKeyTiles; ++k) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = k * 16 + i * 8;
        float2 pair = *reinterpret_cast<const float2*>(from + at);
#pragma unroll
        for (int part = 1; part < S::kScoreParts; ++part) {
          const float2 more =
              *reinterpret_cast<const float2*>(from + at + part * S::kColumns * S::kScorePitch);
          pair.x += more.x;
          pair.y += more.y;
        }
        const int index = first_key + at + lane % 4 * 2;
        const bool first_seen = index >= a.first_index && index < end;
        const bool second_seen = index + 1 >= a.first_index && index + 1 < end;
        p[k][2 * i] = first_seen ? pair.x * factor : -kInfinity;
        p[k][2 * i + 1] = second_seen ? pair.y * factor : -kInfinity;
        largest = fmaxf(largest, fmaxf(p[k][2 * i], p[k][2 * i + 1]));
      }
    }
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
    const float rescale = raise(largest, part);
    const float relative_to = base(part);
    float sum = 0;
#pragma unroll
    for (int k = 0; k < S::kKeyTiles; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p[k][i] = exp2f(p[k][i] - relative_to);
      sum += (p[k][0] + p[k][1]) + (p[k][2] + p[k][3]);
      if constexpr (S::kCodes) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float2 scale =
              *reinterpret_cast<const float2*>(scales + k * 16 + i * 8 + lane % 4 * 2);
          p[k][2 * i] *= scale.x;
          p[k][2 * i + 1] *= scale.y;
        }
      }
      const SplitPair lower = split_pair(p[k][0], p[k][1]);
      const SplitPair upper = split_pair(p[k][2], p[k][3]);
      weights[k] = {lower.high, upper.high, lower.low, upper.low};
    }
    part.sum = fmaf(part.sum, rescale, sum);
    return rescale;
  }

  // Of all keys, for a span's header.
  __device__ __forceinline__ float2 header() const {
    float sum = part.sum;
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    return make_float2(part.max, sum);
  }
};

// A warp's values: all columns, its share of the dimensions; words as in TilePart.
template <class S>
struct Values {
  float words[S::kDimTiles][S::kTiles][4] = {};

  // Brings a tile's columns to a new maximum: factors of columns 2t and 2t + 1.
  __device__ __forceinline__ void rescale(int c, float even, float odd) {
#pragma unroll
    for (int m = 0; m < S::kDimTiles; ++m) {
      words[m][c][0] *= even;
      words[m][c][1] *= odd;
      words[m][c][2] *= even;
      words[m][c][3] *= odd;
    }
  }

  // Adds 16 keys' values.
  __device__ __forceinline__ void weigh(const uint4* values, int k,
                                        const uint4 (&weights)[S::kTiles]) {
    ValueOperands<S> v;
#pragma unroll
    for (int m = 0; m < S::kDimTiles; ++m) {
      v.load(values, k, m, TilePart<S>::dim_tile(m));
#pragma unroll
      for (int c = 0; c < S::kTiles; ++c) {
        mma_m16n8k16(words[m][c], v.words[0], v.words[1], v.words[2], v.words[3], weights[c].x,
                     weights[c].y);
        mma_m16n8k16(words[m][c], v.words[0], v.words[1], v.words[2], v.words[3], weights[c].z,
                     weights[c].w);
      }
    }
  }

  // Tile c is picked rather than indexed: these lie in registers.
  __device__ __forceinline__ TilePart<S> tile(int c, const float2* headers) const {
    TilePart<S> picked;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 header = headers[TilePart<S>::column(c, j)];
      picked.part[j] = {header.x, header.y};
    }
#pragma unroll
    for (int each = 0; each < S::kTiles; ++each) {
#pragma unroll
      for (int m = 0; m < S::kDimTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (each == c) picked.values[m][i] = words[m][each][i];
        }
      }
    }
    return picked;
  }
};

// One step once its keys are scored. Warp w softens tile w for all warps; a single tile every warp
// softens for itself, which saves a barrier.
template <class S>
__device__ __forceinline__ void weigh_step(const ops::PagedAttentionArgs& a, const Shared<S>& s,
                                           int first_key, const Stage& stage, Softmax<S>& softmax,
                                           Values<S>& values) {
  const int lane = lane_of_warp();
  if constexpr (S::kTiles == 1) {
    uint4 weights[S::kKeyTiles];
    const float factor = softmax.soften(a, s.scores, stage.scales, 0, first_key, weights);
    if (__any_sync(kAllLanes, factor != 1.0f)) {  // times 1 changes no bit
      const int column = lane % 4 * 2;
      const float even = __shfl_sync(kAllLanes, factor, column * 4);
      const float odd = __shfl_sync(kAllLanes, factor, column * 4 + 4);
      values.rescale(0, even, odd);
    }
#pragma unroll
    for (int k = 0; k < S::kKeyTiles; ++k) {
      const uint4 of_keys[1] = {weights[k]};
      values.weigh(stage.pieces, k, of_keys);
    }
  } else {
    const int own = warp_of_block();
    if (own < S::kTiles) {
      uint4 weights[S::kKeyTiles];
      const float factor = softmax.soften(a, s.scores, stage.scales, own, first_key, weights);
      if (lane % 4 == 0) s.factors[own * 8 + lane / 4] = factor;
#pragma unroll
      for (int k = 0; k < S::kKeyTiles; ++k) {
        s.weights[(own * S::kKeyTiles + k) * kWarp + lane] = weights[k];
      }
    }
    __syncthreads();  // factors and weights are there
#pragma unroll
    for (int c = 0; c < S::kTiles; ++c) {
      const float2 factor = *reinterpret_cast<const float2*>(s.factors + TilePart<S>::column(c, 0));
      const bool changes = factor.x != 1.0f || factor.y != 1.0f;
      if (__any_sync(kAllLanes, changes)) values.rescale(c, factor.x, factor.y);
    }
#pragma unroll
    for (int k = 0; k < S::kKeyTiles; ++k) {
      uint4 of_keys[S::kTiles];
#pragma unroll
      for (int c = 0; c < S::kTiles; ++c) {
        of_keys[c] = s.weights[(c * S::kKeyTiles + k) * kWarp + lane];
      }
      values.weigh(stage.pieces, k, of_keys);
    }
  }
}

// The joins that the last block to finish a span of a bundle completes. A function of its own, so
// that the registers of what is under way are those of memory accesses here, of products elsewhere.
template <class S>
__device__ __noinline__ void join_bundle(const ops::PagedAttentionArgs& a,
                                         const GeneratedPlan& plan, const Unit& unit,
                                         unsigned* arrivals) {
  const Parts<S> parts(a, plan);
  const Bundle bundle(unit);
#pragma unroll 1
  for (int c = 0; c < S::kTiles; ++c) {
    const TilePart<S> part = parts.join_all(parts.at(bundle.place, bundle.first % kBundleSpans),
                                            parts.stride, bundle.spans, c);
    if (unit.num_bundles == 1) {
      write_tile(a, plan, unit, c, part);
    } else {
      parts.put(parts.at(bundle.place, kBundleSpans), c, part);
    }
  }
  if (unit.num_bundles == 1) return;
  if (!last_to_arrive(arrivals + plan.bundles + unit.first_bundle, unit.num_bundles)) return;
#pragma unroll 1
  for (int c = 0; c < S::kTiles; ++c) {
    write_tile(a, plan, unit, c,
               parts.join_all(parts.at(unit.first_bundle, kBundleSpans),
                              kBundleParts * parts.stride, unit.num_bundles, c));
  }
}

// A span that others share: its part to scratch memory, and the joins that it completes.
template <class S>
__device__ __forceinline__ void share_span(const ops::PagedAttentionArgs& a,
                                           const GeneratedPlan& plan, const Unit& unit,
                                           const float2* headers, const Values<S>& values,
                                           unsigned* arrivals) {
  const Parts<S> parts(a, plan);
  const Bundle bundle(unit);
  float* own = parts.at(bundle.place, unit.span % kBundleSpans);
#pragma unroll
  for (int c = 0; c < S::kTiles; ++c) parts.put(own, c, values.tile(c, headers));
  if (last_to_arrive(arrivals + bundle.place, bundle.spans)) {
    join_bundle<S>(a, plan, unit, arrivals);
  }
}

// The spans of a unit that one block takes alone, joined as share_span() does. One object for each
// thread; loops over its parts stay loops, so that it lies in local memory, out of the way of the
// registers that the products need.
template <class S>
struct AloneJoin {
  TilePart<S> joins[2 * S::kTiles];  // of each tile the bundle's, then all bundles'

  __device__ __forceinline__ void add_span(const ops::PagedAttentionArgs& a,
                                           const GeneratedPlan& plan, const Unit& unit,
                                           const float2* headers, const Values<S>& values) {
    if (unit.span == unit.first_span) {
#pragma unroll 1
      for (int i = 0; i < 2 * S::kTiles; ++i) joins[i] = TilePart<S>{};
    }
    const bool ends_unit = unit.span == unit.first_span + unit.num_spans - 1;
    const bool ends_bundle = ends_unit || (unit.span + 1) % kBundleSpans == 0;
#pragma unroll 1
    for (int c = 0; c < S::kTiles; ++c) {
      TilePart<S> part = values.tile(c, headers);
#pragma unroll 1
      for (int level = 0; level < 2; ++level) {
        TilePart<S>& to = joins[2 * c + level];
        to.add(part);
        if (!ends_bundle) break;
        part = to;
        if (level == 0) to = TilePart<S>{};
      }
      if (ends_unit) write_tile(a, plan, unit, c, part);
    }
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    attention_generated_kernel(const __grid_constant__ ops::PagedAttentionArgs a,
                               const __grid_constant__ GeneratedPlan plan, unsigned* arrivals) {
  allow_next_kernel();
  wait_for_previous_kernel();
  extern __shared__ uint4 shared[];
  __shared__ alignas(8) float factors[S::kColumns];  // read by pairs
  __shared__ float2 headers[S::kColumns];
  // As words: what lies in shared memory has no constructor.
  __shared__ uint4 units[Shared<S>::kUnits * sizeof(Unit) / sizeof(uint4)];
  Shared<S> s{.ring = shared,
              .factors = factors,
              .headers = headers,
              .units = reinterpret_cast<Unit*>(units)};
  s.queries = s.ring + S::kStages * Shared<S>::kStagePieces;
  s.weights = s.queries + S::kAhead * Shared<S>::kQueryPieces;
  constexpr int kWeights = S::kTiles > 1 ? S::kTiles * S::kKeyTiles * kWarp : 0;
  s.scores = reinterpret_cast<float*>(s.weights + kWeights);
  s.scales = s.scores + S::kScoreParts * S::kColumns * S::kScorePitch;

  SpanStream<S> stream(a, plan, s);
  AloneJoin<S> alone;
  int stage = 0;
  const auto next_stage = [&] {
    const Stage held{s.ring + stage * Shared<S>::kStagePieces, s.scales + stage * S::kStepKeys};
    stage = stage + 1 == S::kStages ? 0 : stage + 1;
    return held;
  };
  for (int n = 0; s.units[n % Shared<S>::kUnits].num_rows > 0; ++n) {
    const Unit& unit = s.units[n % Shared<S>::kUnits];
    const int tile = S::kTiles == 1 ? 0 : warp_of_block();
    Softmax<S> softmax(plan, unit, tile);
    Queries<S> queries;
    Values<S> values;
    const int end = unit.end();
    int key = unit.first_key();
    bool begins = true;
    do {
      stream.wait();
      __syncthreads();  // keys and queries are there; the values before have been used
      if (begins) queries.load(s.queries + n % S::kAhead * Shared<S>::kQueryPieces);
      stream.fetch_keys();
      score_step<S>(next_stage(), queries, s.scores);
      stream.wait();
      __syncthreads();  // scores and values are there; keys and queries have been used
      stream.fetch_values();
      weigh_step<S>(a, s, key, next_stage(), softmax, values);
      begins = false;
      key += S::kStepKeys;
    } while (key < end);

    const float2 header = softmax.header();
    const bool writes = S::kTiles == 1 ? warp_of_block() == 0 : tile < S::kTiles;
    if (writes && lane_of_warp() % 4 == 0) headers[tile * 8 + lane_of_warp() / 4] = header;
    __syncthreads();  // headers are there
    if (unit.shared) {
      share_span(a, plan, unit, headers, values, arrivals);
    } else {
      alone.add_span(a, plan, unit, headers, values);
    }
  }
}

template <class S>
void run_generated(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                   const GeneratedPlan& plan) {
  launch_overlapping(backend, attention_generated_kernel<S>, static_cast<unsigned>(plan.grid),
                     S::kThreads, plan.shared_bytes, args, plan, backend.arrivals());
}

template <int kDim, class TPage>
void run_generated(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                   const GeneratedPlan& plan) {
  switch (plan.columns) {
    case 8:
      return run_generated<Shape<kDim, 8, TPage>>(backend, args, plan);
    case 16:
      return run_generated<Shape<kDim, 16, TPage>>(backend, args, plan);
    case 24:
      return run_generated<Shape<kDim, 24, TPage>>(backend, args, plan);
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
