// Paged attention by fp32 multiply-adds, for F32 queries or pages, and FP8 pages. A
// block owns one row and up to 8 query heads of a KV head. Inside a partition a thread owns one key
// (its dot products run over the dimensions in ascending order), then one dimension (its sum runs
// over the keys in ascending order). Blocks may share a row's spans, which a second kernel then
// joins.
#include <type_traits>

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/device/pages.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/ops/limits.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = ops::kAttentionPartition;
constexpr int kHeads = 8;
static_assert(kThreads >= ops::kMaxHeadDim && kThreads / kWarp == kHeads);

// Where a row's parts of one head lie in scratch memory: [rows, num_heads, spans, part_floats].
__device__ __forceinline__ float* span_at(const ops::PagedAttentionArgs& a, int num_spans,
                                          std::int64_t row, int head, int span) {
  return static_cast<float*>(a.scratch) +
         ((row * a.num_heads + head) * num_spans + span) * part_floats(a.pages.head_dim);
}

struct PlainBlock {
  std::int64_t row = 0;
  int kv_head = 0, first_head = 0, heads = 0;  // heads of this block
  int slot = 0, end = 0;                       // the row sees [first_index, end)
};

// One partition: a part of each head, the thread's dimension of their values in `values`.
template <class TPage>
__device__ void attend(const ops::PagedAttentionArgs& a, const PlainBlock& b, int partition,
                       const float* q, float* scores, SoftmaxPart (&parts)[kHeads],
                       float (&values)[kHeads]) {
  constexpr bool kCodes = std::is_same_v<TPage, e4m3>;
  __shared__ std::int64_t entries[kThreads];
  __shared__ float v_scales[kCodes ? kThreads : 1];
  __shared__ SoftmaxPart of_head[kHeads];
  const int thread = static_cast<int>(threadIdx.x);
  const int dim = a.pages.head_dim;
  const int index = partition * kThreads + thread;
  const bool seen = index >= a.first_index && index < b.end;
  __syncthreads();  // scores and entries of the partition before have been used
  float dots[kHeads] = {};
  float factor = a.scale * kLog2E;
  if (seen) {
    const std::int64_t row = entry_row(a.batch, a.pages, b.slot, index, b.kv_head);
    entries[thread] = row * dim;
    if constexpr (kCodes) {
      const std::int64_t scale = scale_index(a.pages.format, row, b.kv_head);
      factor *= a.pages.k_scales[scale];
      v_scales[thread] = a.pages.v_scales[scale];
    }
    const TPage* key = static_cast<const TPage*>(a.pages.k_pages) + entries[thread];
    for (int d = 0; d < dim; ++d) {
      const float k = load_float(key + d);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) dots[h] = fmaf(k, q[h * dim + d], dots[h]);
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    scores[h * kThreads + thread] = seen ? dots[h] * factor : -kInfinity;
  }
  __syncthreads();
  // A warp a head.
  float* own = scores + thread / kWarp * kThreads;
  float largest = -kInfinity;
  for (int j = thread % kWarp; j < kThreads; j += kWarp) largest = fmaxf(largest, own[j]);
  largest = warp_max(largest);
  float sum = 0;
  for (int j = thread % kWarp; j < kThreads; j += kWarp) {
    const float term = own[j] == -kInfinity ? 0.0f : exp2f(own[j] - largest);
    own[j] = term;
    sum += term;
    // What nobody sees has no scale; its probability is not looked at either.
    if constexpr (kCodes) own[j] = term == 0.0f ? 0.0f : term * v_scales[j];
  }
  sum = warp_sum(sum);
  if (thread % kWarp == 0) of_head[thread / kWarp] = {largest, sum};
  __syncthreads();
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    parts[h] = of_head[h];
    values[h] = 0;
  }
  if (thread >= dim) return;
  const int first = max(a.first_index - partition * kThreads, 0);
  const int last = min(b.end - partition * kThreads, kThreads);
  for (int j = first; j < last; ++j) {
    const float v = load_float(static_cast<const TPage*>(a.pages.v_pages) + entries[j] + thread);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) values[h] = fmaf(scores[h * kThreads + j], v, values[h]);
  }
}

template <class T, class TPage>
__global__ void __launch_bounds__(kThreads)
    attention_plain_kernel(ops::PagedAttentionArgs a, PlainPlan plan, int num_spans) {
  extern __shared__ float shared[];
  const int dim = a.pages.head_dim;
  float* q = shared;                 // [kHeads][dim]
  float* scores = q + kHeads * dim;  // [kHeads][kThreads]
  const int thread = static_cast<int>(threadIdx.x);
  const int group = a.num_heads / a.pages.num_kv_heads;
  const int head_in_group = static_cast<int>(blockIdx.y) % plan.head_blocks * kHeads;
  PlainBlock b{.row = blockIdx.x, .kv_head = static_cast<int>(blockIdx.y) / plan.head_blocks};
  b.first_head = b.kv_head * group + head_in_group;
  b.heads = min(kHeads, group - head_in_group);
  b.slot = a.batch.row_slots[b.row];
  b.end = a.batch.positions[b.row] + 1;
  for (int i = thread; i < kHeads * dim; i += kThreads) {
    const std::int64_t head = b.row * a.num_heads + b.first_head + i / dim;
    q[i] = i / dim < b.heads ? load_float(static_cast<const T*>(a.q) + head * dim + i % dim) : 0.0f;
  }
  SoftmaxPart total[kHeads];
  float total_values[kHeads] = {};
  const int last_span = (b.end - 1) / kPlainSpan;
  for (int span = a.first_index / kPlainSpan + static_cast<int>(blockIdx.z); span <= last_span;
       span += plan.splits) {
    SoftmaxPart state[kHeads];
    float values[kHeads] = {};
    for (int i = 0; i < kPlainSpanPartitions; ++i) {
      const int partition = span * kPlainSpanPartitions + i;
      if (partition * kThreads >= b.end || (partition + 1) * kThreads <= a.first_index) continue;
      SoftmaxPart parts[kHeads];
      float part_values[kHeads];
      attend<TPage>(a, b, partition, q, scores, parts, part_values);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        values[h] = joined(join(parts[h], state[h]), part_values[h], values[h]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (plan.splits == 1) {
        total_values[h] = joined(join(state[h], total[h]), values[h], total_values[h]);
      } else if (h < b.heads) {
        float* to = span_at(a, num_spans, b.row, b.first_head + h, span);
        if (thread == 0) to[0] = state[h].max;
        if (thread == 0) to[1] = state[h].sum;
        if (thread < dim) to[kPartHeader + thread] = values[h];
      }
    }
  }
  if (plan.splits > 1 || thread >= dim) return;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h < b.heads) {
      write_value<T>(a, b.row, b.first_head + h, thread, total_values[h], total[h].sum);
    }
  }
}

// One block a row and head, one thread a dimension. The same steps as inside a block that kept all
// spans to itself.
template <class T>
__global__ void join_spans_kernel(ops::PagedAttentionArgs a, int num_spans) {
  const std::int64_t row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int d = static_cast<int>(threadIdx.x);
  SoftmaxPart state;
  float value = 0;
  for (int s = a.first_index / kPlainSpan; s <= a.batch.positions[row] / kPlainSpan; ++s) {
    const float* span = span_at(a, num_spans, row, head, s);
    const SoftmaxPart part{span[0], span[1]};
    value = joined(join(part, state), span[kPartHeader + d], value);
  }
  write_value<T>(a, row, head, d, value, state.sum);
}

}  // namespace

void attention_plain(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                     const AttentionSize& size) {
  const PlainPlan plan =
      plan_plain(size, {.num_processors = backend.limits().num_processors,
                        .shared_bytes_per_block = backend.limits().shared_bytes_per_block});
  const auto rows = static_cast<unsigned>(size.num_rows);
  const dim3 grid(rows, static_cast<unsigned>(size.num_kv_heads * plan.head_blocks),
                  static_cast<unsigned>(plan.splits));
  const auto spans = static_cast<int>(num_plain_spans(size.max_context));
  with_float_type(args.dtype, [&](auto type) {
    with_page_type(args.pages.format, [&](auto page) {
      launch(backend, attention_plain_kernel<decltype(type), decltype(page)>, grid, kThreads,
             plan.shared_bytes, args, plan, spans);
    });
    if (plan.splits == 1) return;
    launch(backend, join_spans_kernel<decltype(type)>,
           dim3(rows, static_cast<unsigned>(args.num_heads)), static_cast<unsigned>(size.head_dim),
           0, args, spans);
  });
}

}  // namespace tandem::cuda
