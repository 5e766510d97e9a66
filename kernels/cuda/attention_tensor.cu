// Paged attention on the matrix units, for BF16 queries and pages. A block owns up to 32 columns -
// query heads of one KV head, of one or more rows - and 256 keys at a time:
//   scores [keys, columns] = K Q^T      each warp 32 keys, lanes load 16 bytes of a key's row
//   values [dims, columns] = V^T P^T    each warp 32 dimensions, lanes load 8 bytes of a value's
//   row
// The probabilities go through shared memory as two bf16 numbers, p = high + low, which keep 16
// bits of them. Columns are independent inside the matrix units, so a column's result does not
// depend on its neighbours; rows of different sequences in one block are worked on one after the
// other.
#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/pages.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/ops/limits.h"

namespace tandem::cuda {
namespace {

constexpr int kKeys = ops::kAttentionPartition;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kKeyTiles = kKeys / kWarps / 16;  // of a warp
constexpr int kProbabilityRow = kKeys + 16;     // padded against bank conflicts
constexpr int kWarpDims = 32;
static_assert(kWarps * kWarpDims >= ops::kMaxHeadDim);

// Rows of one sequence, [begin, end) of the block's.
struct Run {
  int begin = 0, end = 0;
  int slot = 0;
  int last_index = 0;  // the largest that any of its rows sees
};

// One lane's view of a block: columns 2t and 2t + 1 of each tile.
template <int kTiles>
struct Columns {
  int end[kTiles][2];  // a column sees indices below; 0: it does not exist
};

struct Shared {
  bf16* q;     // [columns][query_row]
  bf16* high;  // [columns][kProbabilityRow]
  bf16* low;
  int query_row;
};

__device__ __forceinline__ int query_row_of(int dim) { return (dim + 31) / 32 * 32 + 32; }

// Row (of the block) and head of a column; head -1 where there is none.
struct ColumnPlace {
  int row = 0, head = -1;
};

__device__ __forceinline__ ColumnPlace place_of(const ops::PagedAttentionArgs& a,
                                                const AttentionPlan& plan, int column) {
  const int group = a.num_heads / a.pages.num_kv_heads;
  const int kv_head = static_cast<int>(blockIdx.y) / plan.head_blocks;
  const int row = column / plan.heads_per_block;
  const int head_in_group = static_cast<int>(blockIdx.y) % plan.head_blocks * plan.heads_per_block +
                            column % plan.heads_per_block;
  const std::int64_t batch_row = std::int64_t{blockIdx.x} * plan.rows_per_block + row;
  const bool exists =
      row < plan.rows_per_block && batch_row < a.batch.num_rows && head_in_group < group;
  return {row, exists ? kv_head * group + head_in_group : -1};
}

template <int kTiles>
__device__ void load_queries(const ops::PagedAttentionArgs& a, const AttentionPlan& plan,
                             const Shared& s) {
  const int dim = a.pages.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < 8 * kTiles * s.query_row; i += kThreads) {
    const ColumnPlace place = place_of(a, plan, i / s.query_row);
    const int d = i % s.query_row;
    const std::int64_t row = std::int64_t{blockIdx.x} * plan.rows_per_block + place.row;
    s.q[i] = place.head < 0 || d >= dim
                 ? bf16{}
                 : static_cast<const bf16*>(a.q)[(row * a.num_heads + place.head) * dim + d];
  }
}

// Scores of the warp's keys: [key tile][column tile], rows g and g + 8, columns 2t and 2t + 1.
template <int kTiles>
__device__ __forceinline__ void score_keys(const ops::PagedAttentionArgs& a, const Shared& s,
                                           const std::int64_t* entries, int last_key, int g, int t,
                                           float (&scores)[kKeyTiles][kTiles][4]) {
  const int dim = a.pages.head_dim;
  const int first = static_cast<int>(threadIdx.x / kWarp) * kKeyTiles * 16;
  const bf16* keys = static_cast<const bf16*>(a.pages.k_pages);
#pragma unroll
  for (int m = 0; m < kKeyTiles; ++m) {
    const bf16* row[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = first + m * 16 + i * 8 + g;
      row[i] = key <= last_key ? keys + entries[key] : nullptr;
    }
    // Several steps' keys are under way at a time.
    constexpr int kSteps = kTiles > 2 ? 4 : 8;
    for (int batch = 0; batch < dim; batch += kSteps * 32) {
      Columns8 k[kSteps][2] = {};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int d = batch + step * 32 + 8 * t;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (row[i] == nullptr || d >= dim) continue;
          const uint4 v = __ldg(reinterpret_cast<const uint4*>(row[i] + d));
          k[step][i] = {{v.x, v.y, v.z, v.w}};
        }
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const int d = batch + step * 32 + 8 * t;
        if (batch + step * 32 >= dim) break;
#pragma unroll
        for (int c = 0; c < kTiles; ++c) {
          const uint4 v = *reinterpret_cast<const uint4*>(s.q + (c * 8 + g) * s.query_row + d);
          mma_step(scores[m][c], k[step][0], k[step][1], {{v.x, v.y, v.z, v.w}});
        }
      }
    }
  }
}

// Turns scores into probabilities, exp(score - largest of the column), and puts them into shared
// memory; returns each column's part.
template <int kTiles>
__device__ __forceinline__ void soften(const ops::PagedAttentionArgs& a, const Shared& s,
                                       const Columns<kTiles>& columns, int first_index,
                                       float (*of_warp)[kTiles * 8], int g, int t,
                                       float (&scores)[kKeyTiles][kTiles][4],
                                       SoftmaxPart (&parts)[kTiles][2]) {
  const int warp = static_cast<int>(threadIdx.x / kWarp);
#pragma unroll
  for (int c = 0; c < kTiles; ++c) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float largest = -kInfinity;
#pragma unroll
      for (int m = 0; m < kKeyTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int index = first_index + (warp * kKeyTiles + m) * 16 + i * 8 + g;
          float& score = scores[m][c][2 * i + j];
          const bool seen = index >= a.first_index && index < columns.end[c][j];
          score = seen ? score * a.scale : -kInfinity;
          largest = fmaxf(largest, score);
        }
      }
#pragma unroll
      for (int distance = 4; distance < kWarp; distance *= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
      }
      if (g == 0) of_warp[warp][c * 8 + 2 * t + j] = largest;
    }
  }
  __syncthreads();
#pragma unroll
  for (int c = 0; c < kTiles; ++c) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int column = c * 8 + 2 * t + j;
      float largest = of_warp[0][column];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) largest = fmaxf(largest, of_warp[w][column]);
      float sum = 0;
#pragma unroll
      for (int m = 0; m < kKeyTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float score = scores[m][c][2 * i + j];
          const float p = score == -kInfinity ? 0.0f : expf(score - largest);
          const bf16 high = to_bf16(p);
          const bf16 low = to_bf16(p - to_float(high));
          const int key = (warp * kKeyTiles + m) * 16 + i * 8 + g;
          s.high[column * kProbabilityRow + key] = high;
          s.low[column * kProbabilityRow + key] = low;
          sum += p;
        }
      }
#pragma unroll
      for (int distance = 4; distance < kWarp; distance *= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, distance);
      }
      parts[c][j] = {largest, sum};
    }
  }
  __syncthreads();  // of_warp has been read
#pragma unroll
  for (int c = 0; c < kTiles; ++c) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (g == 0) of_warp[warp][c * 8 + 2 * t + j] = parts[c][j].sum;
    }
  }
  __syncthreads();  // sums and probabilities are there
#pragma unroll
  for (int c = 0; c < kTiles; ++c) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float sum = of_warp[0][c * 8 + 2 * t + j];
#pragma unroll
      for (int w = 1; w < kWarps; ++w) sum += of_warp[w][c * 8 + 2 * t + j];
      parts[c][j].sum = sum;
    }
  }
}

// values[m][tile]: dimensions 4g + 2m (parts 0, 1) and 4g + 2m + 1 (parts 2, 3) of the warp's 32,
// columns 2t and 2t + 1, summed over keys 0 .. last_key in steps of 16.
template <int kTiles>
__device__ __forceinline__ void weigh_values(const ops::PagedAttentionArgs& a, const Shared& s,
                                             const std::int64_t* entries, int last_key, int g,
                                             int t, float (&values)[2][kTiles][4]) {
  const int d = static_cast<int>(threadIdx.x / kWarp) * kWarpDims + 4 * g;
  const bf16* v_pages = static_cast<const bf16*>(a.pages.v_pages);
  constexpr int kSteps = 4;
  for (int batch = 0; batch <= last_key; batch += kSteps * 16) {
    // Keys 4t .. 4t+3 of a step stand at the lane's four k indices.
    uint2 v[kSteps][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = batch + step * 16 + 4 * t + i;
        if (key <= last_key && d < a.pages.head_dim) {
          v[step][i] = __ldg(reinterpret_cast<const uint2*>(v_pages + entries[key] + d));
        }
      }
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (batch + step * 16 > last_key) break;
#pragma unroll
      for (int c = 0; c < kTiles; ++c) {
        const int at = (c * 8 + g) * kProbabilityRow + batch + step * 16 + 4 * t;
        const uint2 high = *reinterpret_cast<const uint2*>(s.high + at);
        const uint2 low = *reinterpret_cast<const uint2*>(s.low + at);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const auto pick = [&](int i) { return m == 0 ? v[step][i].x : v[step][i].y; };
          const uint32_t a0 = __byte_perm(pick(0), pick(1), 0x5410);
          const uint32_t a1 = __byte_perm(pick(0), pick(1), 0x7632);
          const uint32_t a2 = __byte_perm(pick(2), pick(3), 0x5410);
          const uint32_t a3 = __byte_perm(pick(2), pick(3), 0x7632);
          mma_m16n8k16(values[m][c], a0, a1, a2, a3, high.x, high.y);
          mma_m16n8k16(values[m][c], a0, a1, a2, a3, low.x, low.y);
        }
      }
    }
  }
}

// A softmax under way: parts of the columns, values of the warp's dimensions.
template <int kTiles>
struct State {
  SoftmaxPart parts[kTiles][2];
  float values[2][kTiles][4] = {};

  __device__ __forceinline__ void add(const SoftmaxPart (&more)[kTiles][2],
                                      const float (&more_values)[2][kTiles][4]) {
#pragma unroll
    for (int c = 0; c < kTiles; ++c) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const Join factors = join(more[c][j], parts[c][j]);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& value = values[m][c][2 * i + j];
            value = joined(factors, more_values[m][c][2 * i + j], value);
          }
        }
      }
    }
  }
};

// Calls visit(tile, j, m, i, dimension, place) for what a lane holds of the run's columns.
template <int kTiles, class Visit>
__device__ __forceinline__ void for_each_value(const ops::PagedAttentionArgs& a,
                                               const AttentionPlan& plan, const Run& run, int g,
                                               int t, const Visit& visit) {
#pragma unroll
  for (int c = 0; c < kTiles; ++c) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const ColumnPlace place = place_of(a, plan, c * 8 + 2 * t + j);
      if (place.head < 0 || place.row < run.begin || place.row >= run.end) continue;
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int d = static_cast<int>(threadIdx.x / kWarp) * kWarpDims + 4 * g + 2 * m + i;
          if (d < a.pages.head_dim) visit(c, j, m, i, d, place);
        }
      }
    }
  }
}

// kSplit: each span goes to scratch memory, to be joined later.
template <int kTiles, bool kSplit>
__device__ void attend_run(const ops::PagedAttentionArgs& a, const AttentionPlan& plan,
                           const Run& run, const Shared& s, int num_spans_of_table) {
  __shared__ std::int64_t entries[kKeys];
  __shared__ float of_warp[kWarps][kTiles * 8];
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int g = lane / 4, t = lane % 4;
  const std::int64_t first_row = std::int64_t{blockIdx.x} * plan.rows_per_block;
  const int kv_head = static_cast<int>(blockIdx.y) / plan.head_blocks;
  Columns<kTiles> columns;
#pragma unroll
  for (int c = 0; c < kTiles; ++c) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const ColumnPlace place = place_of(a, plan, c * 8 + 2 * t + j);
      const bool ours = place.head >= 0 && place.row >= run.begin && place.row < run.end;
      columns.end[c][j] = ours ? a.batch.positions[first_row + place.row] + 1 : 0;
    }
  }
  State<kTiles> total;
  for (int span = a.first_index / kSpanTokens + static_cast<int>(blockIdx.z);
       span <= run.last_index / kSpanTokens; span += plan.splits) {
    State<kTiles> state;
    for (int i = 0; i < kSpanPartitions; ++i) {
      const int first_index = (span * kSpanPartitions + i) * kKeys;
      if (first_index > run.last_index || first_index + kKeys <= a.first_index) continue;
      const int last_key = min(kKeys - 1, run.last_index - first_index);
      __syncthreads();  // the partition before has been used
      for (int key = static_cast<int>(threadIdx.x); key <= last_key; key += kThreads) {
        entries[key] = page_entry(a.batch, a.pages, run.slot, first_index + key, kv_head);
      }
      __syncthreads();
      float scores[kKeyTiles][kTiles][4] = {};
      SoftmaxPart parts[kTiles][2];
      float values[2][kTiles][4] = {};
      score_keys<kTiles>(a, s, entries, last_key, g, t, scores);
      soften<kTiles>(a, s, columns, first_index, of_warp, g, t, scores, parts);
      weigh_values<kTiles>(a, s, entries, last_key, g, t, values);
      state.add(parts, values);
    }
    if constexpr (!kSplit) {
      total.add(state.parts, state.values);
      continue;
    }
    for_each_value<kTiles>(
        a, plan, run, g, t, [&](int c, int j, int m, int i, int d, const ColumnPlace& place) {
          float* to = span_at(a, num_spans_of_table, first_row + place.row, place.head, span);
          if (d == 0) {
            to[0] = state.parts[c][j].max;
            to[1] = state.parts[c][j].sum;
          }
          to[2 + d] = state.values[m][c][2 * i + j];
        });
  }
  if constexpr (kSplit) return;
  for_each_value<kTiles>(a, plan, run, g, t,
                         [&](int c, int j, int m, int i, int d, const ColumnPlace& place) {
                           write_value<bf16>(a, first_row + place.row, place.head, d,
                                             total.values[m][c][2 * i + j], total.parts[c][j].sum);
                         });
}

template <int kTiles, bool kSplit>
__global__ void __launch_bounds__(kThreads)
    attention_tensor_kernel(ops::PagedAttentionArgs a, AttentionPlan plan, int num_spans_of_table) {
  extern __shared__ uint4 shared[];
  Shared s;
  s.query_row = query_row_of(a.pages.head_dim);
  s.q = reinterpret_cast<bf16*>(shared);
  s.high = s.q + 8 * kTiles * s.query_row;
  s.low = s.high + 8 * kTiles * kProbabilityRow;
  load_queries<kTiles>(a, plan, s);
  const std::int64_t first_row = std::int64_t{blockIdx.x} * plan.rows_per_block;
  const int rows =
      static_cast<int>(min(std::int64_t{plan.rows_per_block}, a.batch.num_rows - first_row));
  Run run;
  for (run.begin = 0; run.begin < rows; run.begin = run.end) {
    run.slot = a.batch.row_slots[first_row + run.begin];
    run.last_index = 0;
    for (run.end = run.begin; run.end < rows; ++run.end) {
      if (a.batch.row_slots[first_row + run.end] != run.slot) break;
      run.last_index = max(run.last_index, a.batch.positions[first_row + run.end]);
    }
    attend_run<kTiles, kSplit>(a, plan, run, s, num_spans_of_table);
  }
}

template <int kTiles>
void run(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
         const AttentionPlan& plan) {
  const dim3 grid(static_cast<unsigned>(plan.row_blocks),
                  static_cast<unsigned>(args.pages.num_kv_heads * plan.head_blocks),
                  static_cast<unsigned>(plan.splits));
  const auto spans = static_cast<int>(
      num_spans(std::int64_t{args.batch.pages_per_sequence} * args.batch.page_tokens));
  const auto kernel = plan.splits > 1 ? attention_tensor_kernel<kTiles, true>
                                      : attention_tensor_kernel<kTiles, false>;
  launch(backend, kernel, grid, kThreads, plan.shared_bytes, args, plan, spans);
}

}  // namespace

void attention_tensor(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                      const AttentionPlan& plan) {
  switch (plan.tiles) {
    case 1:
      return run<1>(backend, args, plan);
    case 2:
      return run<2>(backend, args, plan);
    default:
      return run<4>(backend, args, plan);
  }
}

}  // namespace tandem::cuda
