// Paged attention of BF16 generated rows. A block owns a unit - up to 32 columns, pairs of row and
// head of one KV head - and one span of its context at a time:
//   scores [keys, columns] = K Q^T,   values [dims, columns] = V^T P^T
// Its four slices take turns of 16 keys. A slice streams them through a ring of its own and keeps
// its own running softmax, so slices never wait for each other inside a span; at the end two pairs
// of slices are joined, then the pairs. The probabilities go to the matrix units as two bf16
// numbers, which keep 16 bits of them. Columns are independent there, so a column's result does not
// depend on its neighbours.
//
// The grid stays and walks over all units and spans. A span's part goes to scratch memory; the last
// block to finish a span of a bundle joins the bundle, the last to finish a bundle joins those. A
// segment for which there is no scratch memory is worked on unit by unit, in the same order.
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/attention_parts.cuh"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/attention_units.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

constexpr int kPieces = kStageColumns / 8;           // of a row of a stage
constexpr int kStagePieces = kSliceKeys * kPieces;   // of a stage
constexpr int kRingPieces = kStages * kStagePieces;  // of a slice
constexpr int kStepKeys = kSlices * kSliceKeys;

template <int kPaddedDim, int kColumnCount>
struct Shape {
  static constexpr int kDim = kPaddedDim;
  static constexpr int kColumns = kColumnCount;
  static constexpr int kTiles = kColumns >= 16 ? 2 : 1;  // of eight columns, of a warp
  static constexpr int kSets = kColumns / (8 * kTiles);  // warps of a slice, each with its columns
  static constexpr int kThreads = kSlices * kSets * kWarp;
  static constexpr int kHalves = kDim / kStageColumns;  // stages that 16 keys or values take
  static constexpr int kDimTiles = kDim / 16;
  static constexpr int kPitch = kDim + 4;  // of a column of values in shared memory
  static constexpr int kQuads = kDim / 4;
  static constexpr int kColumnsAtOnce = kThreads / kQuads;  // when a thread takes four dimensions
  static_assert(2 * kColumns * kPitch * 4 <= kSlices * kRingPieces * 16, "two slices fit a ring");
};

// The warps of a slice meet.
template <int kSets>
__device__ __forceinline__ void slice_sync(int slice) {
  if constexpr (kSets == 1) {
    __syncwarp();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + slice), "n"(kSets * kWarp) : "memory");
  }
}

// A slice's stages in the order of use: of each step of 16 keys the halves of K, then of V.
template <class S>
class Stages {
 public:
  __device__ Stages(const ops::PagedAttentionArgs& a, const Unit& unit, uint4* ring, int first_key,
                    int end, int num_steps, int set)
      : a_(a),
        unit_(unit),
        ring_(ring),
        first_key_(first_key),
        end_(end),
        num_steps_(num_steps),
        set_(set),
        next_row_(row_of_step(0)) {
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) fetch();
  }

  // The next stage, once it is there; the one before is given back.
  __device__ __forceinline__ const uint4* next(int slice) {
    wait_async<kStages - 2>();
    slice_sync<S::kSets>(slice);  // all have their copies, and none reads the stage before
    fetch();
    const uint4* stage = ring_ + using_ * kStagePieces;
    using_ = using_ + 1 == kStages ? 0 : using_ + 1;
    return stage;
  }

 private:
  // A lane knows one key of a step.
  __device__ __forceinline__ uint32_t row_of_step(int step) const {
    const int index = first_key_ + step * kStepKeys + static_cast<int>(threadIdx.x) % kSliceKeys;
    if (step >= num_steps_ || index < a_.first_index || index >= end_) return kNoRow;
    return page_row(a_.batch, a_.pages, unit_.slot, index, unit_.kv_head);
  }

  __device__ __forceinline__ void fetch() {
    if (step_ < num_steps_) {
      if (part_ == 0) {
        row_ = next_row_;
        next_row_ = row_of_step(step_ + 1);  // on its way until the step's stages are fetched
      }
      const auto* plane =
          static_cast<const bf16*>(part_ < S::kHalves ? a_.pages.k_pages : a_.pages.v_pages);
      const int lane = static_cast<int>(threadIdx.x % kWarp);
      const int piece = lane % kPieces;
      const int column = part_ % S::kHalves * kStageColumns + piece * 8;
      const bool exists = column < a_.pages.head_dim;
      uint4* stage = ring_ + filling_ * kStagePieces;
      constexpr int kKeysAtOnce = kWarp / kPieces;
#pragma unroll
      for (int i = 0; i < kSliceKeys / kKeysAtOnce / S::kSets; ++i) {
        const int key = (i * S::kSets + set_) * kKeysAtOnce + lane / kPieces;
        const uint32_t row = __shfl_sync(kAllLanes, row_, key);
        const bool valid = exists && row != kNoRow;
        copy_async16(stage + place_of_piece<kPieces>(key, piece),
                     plane + (valid ? std::int64_t{row} * a_.pages.head_dim + column : 0), valid);
      }
      filling_ = filling_ + 1 == kStages ? 0 : filling_ + 1;
      part_ = part_ + 1 == 2 * S::kHalves ? 0 : part_ + 1;
      if (part_ == 0) ++step_;
    }
    commit_async();  // empty groups too, so that the count of groups stays that of stages
  }

  const ops::PagedAttentionArgs& a_;
  const Unit& unit_;
  uint4* ring_;
  int first_key_, end_, num_steps_, set_;
  int step_ = 0, part_ = 0;           // of the stage that is fetched next
  int filling_ = 0, using_ = 0;       // places in the ring
  uint32_t row_ = kNoRow, next_row_;  // of this lane's key
};

template <class S>
__device__ void load_queries(const ops::PagedAttentionArgs& a, const GeneratedPlan& plan,
                             const Unit& unit, uint4* queries) {
  constexpr int kRowPieces = S::kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < S::kColumns * kRowPieces; i += S::kThreads) {
    const int column = i / kRowPieces, piece = i % kRowPieces;
    const int row = column / plan.heads_per_unit, head = column % plan.heads_per_unit;
    uint4 values{};
    if (row < unit.num_rows && head < unit.num_heads && piece * 8 < a.pages.head_dim) {
      const std::int64_t query =
          std::int64_t{unit.first_row + row} * a.num_heads + unit.first_head + head;
      values = __ldg(reinterpret_cast<const uint4*>(static_cast<const bf16*>(a.q) +
                                                    query * a.pages.head_dim + piece * 8));
    }
    queries[place_of_piece<kRowPieces>(column, piece)] = values;
  }
}

// A warp's softmax over the slice's keys of a span: columns 2t and 2t + 1 of each tile; of the
// values dimensions 16 m + g (words 0, 1) and 16 m + g + 8 (words 2, 3).
template <class S>
struct Softmax {
  SoftmaxPart parts[S::kTiles][2];  // sums of this lane's keys, until the end
  float values[S::kDimTiles][S::kTiles][4] = {};
};

// Scores of a step: rows g and g + 8 of the keys.
template <class S>
__device__ __forceinline__ void score_step(Stages<S>& stages, int slice, const uint4* queries,
                                           float (&scores)[S::kTiles][4]) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int matrix = lane / 8, r = lane % 8;
  float sums[2][S::kTiles][4] = {};  // two chains: one instruction need not wait for the last
#pragma unroll
  for (int half = 0; half < S::kHalves; ++half) {
    const uint4* keys = stages.next(slice);
#pragma unroll
    for (int pair = 0; pair < kStageColumns / 32; ++pair) {
      uint32_t q[S::kTiles][4];
#pragma unroll
      for (int c = 0; c < S::kTiles; ++c) {
        load_matrices(q[c], queries + place_of_piece<S::kDim / 8>(
                                          c * 8 + r, half * kPieces + pair * 4 + matrix));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t k[4];
        load_matrices(
            k, keys + place_of_piece<kPieces>(r + matrix % 2 * 8, pair * 4 + i * 2 + matrix / 2));
#pragma unroll
        for (int c = 0; c < S::kTiles; ++c) {
          mma_m16n8k16(sums[i][c], k[0], k[1], k[2], k[3], q[c][2 * i], q[c][2 * i + 1]);
        }
      }
    }
  }
#pragma unroll
  for (int c = 0; c < S::kTiles; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[c][i] = sums[0][c][i] + sums[1][c][i];
  }
}

// Scores become probabilities relative to the running maximum, in the operand layout of the second
// product; the running values are brought to that maximum.
template <class S>
__device__ __forceinline__ void soften_step(const ops::PagedAttentionArgs& a, int key,
                                            const int (&ends)[S::kTiles][2],
                                            float (&scores)[S::kTiles][4], Softmax<S>& softmax,
                                            SplitPair (&p)[S::kTiles][2]) {
  const float factor = a.scale * kLog2E;
  float rescale[S::kTiles][2];
  bool changes = false;
#pragma unroll
  for (int c = 0; c < S::kTiles; ++c) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float largest = -kInfinity;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int index = key + 8 * i;
        float& score = scores[c][2 * i + j];
        const bool seen = index >= a.first_index && index < ends[c][j];
        score = seen ? score * factor : -kInfinity;
        largest = fmaxf(largest, score);
      }
#pragma unroll
      for (int distance = 4; distance < kWarp; distance *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
      }
      SoftmaxPart& part = softmax.parts[c][j];
      rescale[c][j] = raise(largest, part);
      changes = changes || rescale[c][j] != 1.0f;
      const float first = exp2f(scores[c][j] - base(part));
      const float second = exp2f(scores[c][2 + j] - base(part));
      part.sum = fmaf(part.sum, rescale[c][j], first + second);
      scores[c][j] = first;
      scores[c][2 + j] = second;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      p[c][i] = split_pair(scores[c][2 * i], scores[c][2 * i + 1]);
      p[c][i].high = transpose_matrix(p[c][i].high);
      p[c][i].low = transpose_matrix(p[c][i].low);
    }
  }
  if (!__any_sync(kAllLanes, changes)) return;  // times 1 changes no bit
#pragma unroll
  for (int m = 0; m < S::kDimTiles; ++m) {
#pragma unroll
    for (int c = 0; c < S::kTiles; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) softmax.values[m][c][i] *= rescale[c][i % 2];
    }
  }
}

template <class S>
__device__ __forceinline__ void weigh_step(Stages<S>& stages, int slice,
                                           const SplitPair (&p)[S::kTiles][2],
                                           Softmax<S>& softmax) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int matrix = lane / 8, r = lane % 8;
#pragma unroll
  for (int half = 0; half < S::kHalves; ++half) {
    const uint4* values = stages.next(slice);
#pragma unroll
    for (int i = 0; i < kPieces / 2; ++i) {
      uint32_t v[4];
      load_transposed(v, values + place_of_piece<kPieces>(r + matrix / 2 * 8, 2 * i + matrix % 2));
#pragma unroll
      for (int c = 0; c < S::kTiles; ++c) {
        float(&sums)[4] = softmax.values[half * kPieces / 2 + i][c];
        mma_m16n8k16(sums, v[0], v[1], v[2], v[3], p[c][0].high, p[c][1].high);
        mma_m16n8k16(sums, v[0], v[1], v[2], v[3], p[c][0].low, p[c][1].low);
      }
    }
  }
}

// A span's result in shared memory, in place of the rings, in two parts that are yet to be joined:
// [2][kColumns][kPitch], values and then largest score and sum.
template <class S>
struct SpanParts {
  float* values;

  __device__ __forceinline__ float* at(int which, int column) const {
    return values + (which * S::kColumns + column) * S::kPitch;
  }
  __device__ __forceinline__ SoftmaxPart part(int which, int column) const {
    const float* header = at(which, column) + S::kDim;
    return {header[0], header[1]};
  }
  __device__ __forceinline__ void put_part(int which, int column, const SoftmaxPart& part) const {
    float* header = at(which, column) + S::kDim;
    header[0] = part.max;
    header[1] = part.sum;
  }
};

// Calls visit(value, where it lies in part `which`) for what a lane holds.
template <class S, class Visit>
__device__ __forceinline__ void for_each_value(const SpanParts<S>& result, Softmax<S>& softmax,
                                               int which, int set, const Visit& visit) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int c = 0; c < S::kTiles; ++c) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float* column = result.at(which, (set * S::kTiles + c) * 8 + 2 * t + j) + g;
#pragma unroll
      for (int m = 0; m < S::kDimTiles; ++m) {
        visit(c, j, softmax.values[m][c][j], column + m * 16);
        visit(c, j, softmax.values[m][c][2 + j], column + m * 16 + 8);
      }
    }
  }
}

template <class S>
__device__ __forceinline__ void put(const SpanParts<S>& result, Softmax<S>& softmax, int which,
                                    int set) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  for_each_value<S>(result, softmax, which, set,
                    [](int, int, float& value, float* place) { *place = value; });
#pragma unroll
  for (int c = 0; c < S::kTiles; ++c) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (lane / 4 != 0) continue;
      result.put_part(which, (set * S::kTiles + c) * 8 + 2 * (lane % 4) + j, softmax.parts[c][j]);
    }
  }
}

// Slices 0 and 2, and 1 and 3.
template <class S>
__device__ __forceinline__ void join_slices(const SpanParts<S>& result, Softmax<S>& softmax,
                                            int slice, int set) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
  for (int c = 0; c < S::kTiles; ++c) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float& sum = softmax.parts[c][j].sum;
#pragma unroll
      for (int distance = 4; distance < kWarp; distance *= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, distance);
      }
    }
  }
  __syncthreads();  // the rings have been used
  if (slice >= 2) put<S>(result, softmax, slice - 2, set);
  __syncthreads();
  if (slice < 2) {
    Join factors[S::kTiles][2];
#pragma unroll
    for (int c = 0; c < S::kTiles; ++c) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int column = (set * S::kTiles + c) * 8 + 2 * (lane % 4) + j;
        factors[c][j] = join(result.part(slice, column), softmax.parts[c][j]);
      }
    }
    for_each_value<S>(result, softmax, slice, set,
                      [&](int c, int j, float& value, const float* place) {
                        value = joined(factors[c][j], *place, value);
                      });
    __syncwarp();  // this warp's columns have been read by all its lanes
    put<S>(result, softmax, slice, set);
  }
  __syncthreads();
}

// One span of a unit, to `result`.
template <class S>
__device__ void attend_span(const ops::PagedAttentionArgs& a, const GeneratedPlan& plan,
                            const Unit& unit, int span, bool load, uint4* rings, uint4* queries,
                            const SpanParts<S>& result) {
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int slice = warp / S::kSets, set = warp % S::kSets;
  int ends[S::kTiles][2];  // a column sees indices below; 0: it does not exist
#pragma unroll
  for (int c = 0; c < S::kTiles; ++c) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = (set * S::kTiles + c) * 8 + 2 * (lane % 4) + j;
      const int row = column / plan.heads_per_unit, head = column % plan.heads_per_unit;
      const bool exists = row < unit.num_rows && head < unit.num_heads;
      ends[c][j] = exists ? a.batch.positions[unit.first_row + row] + 1 : 0;
    }
  }
  const int first_key = span_begin(span) + slice * kSliceKeys;
  const int end = min(span_begin(span + 1), unit.last_index + 1);
  const int steps = max(0, (end - first_key + kStepKeys - 1) / kStepKeys);
  __syncthreads();  // rings and queries are free
  Stages<S> stages(a, unit, rings + slice * kRingPieces, first_key, end, steps, set);
  if (load) load_queries<S>(a, plan, unit, queries);
  __syncthreads();
  Softmax<S> softmax;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    float scores[S::kTiles][4];
    SplitPair p[S::kTiles][2];
    score_step<S>(stages, slice, queries + set * S::kTiles * 8 * (S::kDim / 8), scores);
    soften_step<S>(a, first_key + step * kStepKeys + lane / 4, ends, scores, softmax, p);
    weigh_step<S>(stages, slice, p, softmax);
  }
  join_slices<S>(result, softmax, slice, set);
}

template <class S>
__device__ __forceinline__ Quad quad_of_span(const SpanParts<S>& result, int column, int d) {
  Quad quad{result.part(0, column), *reinterpret_cast<const float4*>(result.at(0, column) + d)};
  quad.add(result.part(1, column), *reinterpret_cast<const float4*>(result.at(1, column) + d));
  return quad;
}

// Calls visit(number, column, d) for the quads of a thread: columns that exist, dimensions d ..
// d+3.
template <class S, class Visit>
__device__ __forceinline__ void for_each_quad(const ops::PagedAttentionArgs& a,
                                              const GeneratedPlan& plan, const Unit& unit,
                                              const Visit& visit) {
  const int d = static_cast<int>(threadIdx.x) % S::kQuads * 4;
  if (d >= a.pages.head_dim) return;
    // Not unrolled: what a visitor keeps for each number is to lie in local memory, out of the way
    // of the registers that the products need.
#pragma unroll 1
  for (int i = 0; i < S::kColumns / S::kColumnsAtOnce; ++i) {
    const int column = i * S::kColumnsAtOnce + static_cast<int>(threadIdx.x) / S::kQuads;
    if (column / plan.heads_per_unit >= unit.num_rows) return;
    if (column % plan.heads_per_unit < unit.num_heads) visit(i, column, d);
  }
}

// A span that others share: its part to scratch memory, and the joins that it completes.
template <class S>
__device__ void share_span(const ops::PagedAttentionArgs& a, const GeneratedPlan& plan,
                           const Unit& unit, unsigned* arrivals, const SpanParts<S>& result) {
  const Parts parts(a, plan);
  const int bundle = unit.span / kBundleSpans;
  const int number = bundle - unit.first_span / kBundleSpans;  // in the unit
  const int place = unit.first_bundle + number;
  for_each_quad<S>(a, plan, unit, [&](int, int column, int d) {
    parts.put(parts.at(place, unit.span % kBundleSpans, column), d,
              quad_of_span<S>(result, column, d));
  });
  const int first = max(unit.first_span, bundle * kBundleSpans);
  const int count = min(unit.first_span + unit.num_spans, (bundle + 1) * kBundleSpans) - first;
  if (!last_to_arrive(arrivals + place, count)) return;
  for_each_quad<S>(a, plan, unit, [&](int, int column, int d) {
    const Quad quad =
        parts.join_all(parts.at(place, first % kBundleSpans, column), parts.stride(), count, d);
    if (unit.num_bundles == 1) {
      write_quad(a, plan, unit, column, d, quad);
    } else {
      parts.put(parts.at(place, kBundleSpans, column), d, quad);
    }
  });
  if (unit.num_bundles == 1) return;
  if (!last_to_arrive(arrivals + plan.bundles + unit.first_bundle, unit.num_bundles)) return;
  for_each_quad<S>(a, plan, unit, [&](int, int column, int d) {
    write_quad(a, plan, unit, column, d,
               parts.join_all(parts.at(unit.first_bundle, kBundleSpans, column),
                              kBundleParts * parts.stride(), unit.num_bundles, d));
  });
}

// The spans of a unit that one block takes alone, joined as share_span() does. One object for each
// thread, in local memory.
template <class S>
struct AloneJoin {
  static constexpr int kOwn = S::kColumns / S::kColumnsAtOnce;
  Quad bundle[kOwn], total[kOwn];

  __device__ void begin() {
#pragma unroll 1
    for (int i = 0; i < kOwn; ++i) bundle[i] = total[i] = Quad{};
  }

  __device__ void add_span(const ops::PagedAttentionArgs& a, const GeneratedPlan& plan,
                           const Unit& unit, int span, const SpanParts<S>& result) {
    const bool ends_unit = span == unit.first_span + unit.num_spans - 1;
    const bool ends_bundle = ends_unit || (span + 1) % kBundleSpans == 0;
    for_each_quad<S>(a, plan, unit, [&](int i, int column, int d) {
      const Quad quad = quad_of_span<S>(result, column, d);
      bundle[i].add(quad.part, quad.value);
      if (!ends_bundle) return;
      total[i].add(bundle[i].part, bundle[i].value);
      bundle[i] = Quad{};
      if (ends_unit) write_quad(a, plan, unit, column, d, total[i]);
    });
  }
};

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kColumns == 32 ? 1 : 2)
    attention_generated_kernel(ops::PagedAttentionArgs a, GeneratedPlan plan, unsigned* arrivals) {
  extern __shared__ uint4 shared[];
  uint4* rings = shared;                           // [kSlices][kStages][kSliceKeys][kPieces]
  uint4* queries = rings + kSlices * kRingPieces;  // [kColumns][kDim / 8]
  const SpanParts<S> result{reinterpret_cast<float*>(rings)};
  AloneJoin<S> alone;
  Walk walk;
  Unit unit;
  for (int item = static_cast<int>(blockIdx.x); walk.find(a, plan, item, unit);
       item += static_cast<int>(gridDim.x)) {
    const int first = unit.shared ? unit.span : unit.first_span;
    const int last = unit.shared ? unit.span : unit.first_span + unit.num_spans - 1;
    alone.begin();
#pragma unroll 1
    for (int span = first; span <= last; ++span) {
      attend_span<S>(a, plan, unit, span, span == first, rings, queries, result);
      if (unit.shared) {
        share_span<S>(a, plan, unit, arrivals, result);
      } else {
        alone.add_span(a, plan, unit, span, result);
      }
    }
  }
}

template <class S>
void run(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
         const GeneratedPlan& plan) {
  launch(backend, attention_generated_kernel<S>, static_cast<unsigned>(plan.grid), S::kThreads,
         plan.shared_bytes, args, plan, backend.arrivals());
}

template <int kDim>
void run(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
         const GeneratedPlan& plan) {
  switch (plan.columns) {
    case 8:
      return run<Shape<kDim, 8>>(backend, args, plan);
    case 16:
      return run<Shape<kDim, 16>>(backend, args, plan);
    default:
      return run<Shape<kDim, 32>>(backend, args, plan);
  }
}

}  // namespace

void attention_generated(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                         const AttentionSize& size) {
  const GeneratedPlan plan =
      plan_generated(size, {.num_processors = backend.limits().num_processors,
                            .shared_bytes_per_block = backend.limits().shared_bytes_per_block});
  if (padded_head_dim(size.head_dim) == 128) return run<128>(backend, args, plan);
  run<256>(backend, args, plan);
}

}  // namespace tandem::cuda
