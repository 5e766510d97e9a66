// Softmax attention over paged keys and values. The unit of work is one row's query heads of one KV
// head against one partition of 256 cache indices: scores, largest score, sum of exponentials, and
// weighted sum of values in ascending index. Partitions are then combined in ascending order with a
// running rescale. Threads take blocks of rows, which share keys and values in the cache; when
// there are too few blocks for the threads (few rows, long contexts), they take partitions, whose
// results wait in the backend's shared scratch to be combined in the same order.
//
// FP8 keys and values are decoded once for all heads of the group, and for all rows of a block: a
// whole partition into scratch memory for several rows, a few at a time for one. A key's scale
// multiplies its scores, a value's its probabilities.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/paged_attention.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/dot-inl.h"
#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/matmul-inl.h"
#include "kernels/cpu/pages.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/ops/check.h"

#ifndef TANDEM_KERNELS_CPU_PAGED_ATTENTION_TYPES_
#define TANDEM_KERNELS_CPU_PAGED_ATTENTION_TYPES_
namespace tandem::cpu {
namespace {

constexpr int kPartition = ops::kAttentionPartition;
constexpr int kKeysAtOnce = 16;  // keys whose score lanes are in flight
constexpr int kBlockRows = 16;   // rows of a segment that share keys and values in the cache

// Softmax over a part of the context, of one row and head: sum = sum_j exp(s_j - max), acc the same
// sum with v_j. The empty part is {-inf, 0, 0}.
struct Partial {
  float max;
  float sum;
  float padding[14];
  float acc[ops::kMaxHeadDim];
};

struct AttentionScratch {
  float q[ops::kMaxHeadGroup * ops::kMaxHeadDim];
  float lanes[kKeysAtOnce * ops::kMaxHeadGroup * 16];
  float dots[kKeysAtOnce * ops::kMaxHeadGroup];
  float scores[ops::kMaxHeadGroup * kPartition];  // [heads of the group][keys]
  Partial partial[ops::kMaxHeadGroup];
  Partial state[ops::kMaxHeadGroup];  // [rows of the block][heads of the group]
  std::int64_t entries[kPartition];   // where the partition's keys and values lie
  // FP8: the partition's scales, and codes as numbers, of all its entries or of a few.
  float k_scales[kPartition];
  float v_scales[kPartition];
  float k_decoded[kPartition * ops::kMaxHeadDim];
  float v_decoded[kPartition * ops::kMaxHeadDim];
};
static_assert(sizeof(AttentionScratch) <= kThreadScratchBytes);

// Rows of one segment against one KV head.
struct RowBlock {
  int first_row = 0;
  int num_rows = 0;
  int kv_head = 0;
};

int num_partitions(std::int32_t position) { return position / kPartition + 1; }

}  // namespace
}  // namespace tandem::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {
namespace {

void clear(Partial& p, int dim) {
  p.max = -std::numeric_limits<float>::infinity();
  p.sum = 0;
  std::fill_n(p.acc, dim, 0.0f);
}

// state := state and p together.
void combine(const Partial& p, int dim, Partial& state) {
  if (p.sum == 0.0f) return;  // the row sees nothing there
  const float max = std::max(state.max, p.max);
  const float keep = exp_scalar(state.max - max);
  const float take = exp_scalar(p.max - max);
  state.max = max;
  state.sum = std::fma(p.sum, take, state.sum * keep);
  const F32x16 keeps = set16(keep), takes = set16(take);
  for (int d = 0; d < dim; d += kLanes) {
    store16(fma16(load16(p.acc + d), takes, mul16(load16(state.acc + d), keeps)), state.acc + d);
  }
}

// scores[0..n) become exp(score - max); returns {max, sum of them}, lane j mod 16 in ascending j.
HWY_INLINE void softmax_terms(float* scores, int n, Partial& p) {
  const float lowest = -std::numeric_limits<float>::infinity();
  const int padded = (n + kLanes - 1) / kLanes * kLanes;
  for (int j = n; j < padded; ++j) scores[j] = lowest;
  F32x16 largest = set16(lowest);
  for (int j = 0; j < padded; j += kLanes) largest = max16(load16(scores + j), largest);
  p.max = reduce_max16(largest);
  const F32x16 max = set16(p.max);
  F32x16 sum = zero16();
  for (int j = 0; j < padded; j += kLanes) {
    const F32x16 term = exp16(sub16(load16(scores + j), max));
    store16(term, scores + j);
    sum = add16(sum, term);
  }
  p.sum = reduce16(sum);
}

// Asks for entries [first, last). Pages are short, so the hardware's prefetch hardly gets going.
template <class TPage>
HWY_INLINE void fetch_ahead(const TPage* pages, const std::int64_t* entries, int first, int last,
                            int dim) {
  constexpr int kLineElements = 64 / static_cast<int>(sizeof(TPage));
  for (int j = first; j < last; ++j) {
    for (int d = 0; d < dim; d += kLineElements) {
      __builtin_prefetch(pages + entries[j] + d, 0, kIntoL2);
    }
  }
}

HWY_INLINE void decode(const e4m3* codes, int count, float* out) {
  for (int i = 0; i < count; i += kLanes) store16(load16(codes + i), out + i);
}

// Keys and values at s.entries, of cache indices from `begin` on. Neighbours lie beside each other
// up to the border of a page.
template <class TPage>
struct Entries {
  const TPage* k;
  const TPage* v;
  int begin;
  int page_tokens;
};

// Of the partition's keys and values that are seen by a row at `position`.
struct KeyRange {
  int begin, count;

  KeyRange(const ops::PagedAttentionArgs& a, int partition, std::int32_t position)
      : begin(std::max(partition * kPartition, a.first_index)),
        count(std::min((partition + 1) * kPartition, position + 1) - begin) {}
};

// Fills s.entries and, for FP8, the scales.
void locate(const ops::PagedAttentionArgs& a, std::int32_t slot, int kv_head, const KeyRange& keys,
            AttentionScratch& s) {
  const ops::KvPages& pages = a.pages;
  const bool scaled = ops::is_fp8(pages.format);
  for (int j = 0; j < keys.count; ++j) {
    const std::int64_t row = page_row(a.batch, pages, slot, keys.begin + j, kv_head);
    s.entries[j] = row * pages.head_dim;
    if (!scaled) continue;
    s.k_scales[j] = row_scale(pages.format, pages.k_scales, row, kv_head);
    s.v_scales[j] = row_scale(pages.format, pages.v_scales, row, kv_head);
  }
}

// dots[i][h] of `keys` neighbours with the queries of a group.
template <class TPage>
HWY_INLINE void dot_keys(const TPage* k, int keys, int dim, int group, AttentionScratch& s) {
  if constexpr (std::is_same_v<TPage, e4m3>) {
    decode(k, keys * dim, s.k_decoded);
    dot_keys(s.k_decoded, keys, dim, group, s);
  } else {
    std::fill_n(s.lanes, keys * group * kLanes, 0.0f);
    dot_block<Ahead::kNothing>(k, dim, keys, {s.q, dim, group}, dim, s.lanes);
    reduce16(s.lanes, keys * group, s.dots);
  }
}

// partials[h].acc += scores[h][n] times the n values at s.entries. Codes: a few values after the
// other, which are the same sums in the same order, as matmul() adds to what is there.
template <class TPage>
void weigh_values(const TPage* v, int group, int dim, int n, AttentionScratch& s,
                  Partial* partials) {
  constexpr std::int64_t kStride = sizeof(Partial) / sizeof(float);
  if constexpr (std::is_same_v<TPage, e4m3>) {
    for (int j = 0; j < n; j += kKeysAtOnce) {
      const int values = std::min(n - j, kKeysAtOnce);
      for (int i = 0; i < values; ++i) decode(v + s.entries[j + i], dim, s.v_decoded + i * dim);
      matmul({s.scores + j, kPartition, 1}, StridedRows<float>{s.v_decoded, dim}, group, dim,
             values, partials[0].acc, kStride);
    }
  } else {
    matmul({s.scores, kPartition, 1}, GatheredRows<TPage>{v, s.entries}, group, dim, n,
           partials[0].acc, kStride);
  }
}

// scores[h][j] *= scales[j]
void scale_terms(const float* scales, int group, int n, float* scores) {
  for (int h = 0; h < group; ++h) {
    for (int j = 0; j < n; ++j) scores[h * kPartition + j] *= scales[j];
  }
}

// partials[h] for the heads h of one row that read `kv_head`, over the first n entries.
template <class T, class TPage>
void attend_entries(const ops::PagedAttentionArgs& a, int row, int kv_head,
                    const Entries<TPage>& entries, int n, AttentionScratch& s, Partial* partials) {
  const int dim = a.pages.head_dim;
  const int group = a.num_heads / a.pages.num_kv_heads;
  const bool scaled = ops::is_fp8(a.pages.format);
  const T* q = static_cast<const T*>(a.q) +
               (std::int64_t{row} * a.num_heads + std::int64_t{kv_head} * group) * dim;
  for (int i = 0; i < group * dim; i += kLanes) store16(load16(q + i), s.q + i);
  for (int j = 0; j < n;) {
    const int left_in_page = entries.page_tokens - (entries.begin + j) % entries.page_tokens;
    const int keys = std::min({n - j, left_in_page, kKeysAtOnce});
    // The next keys, and the values that these scores will weight.
    fetch_ahead(entries.k, s.entries, j + keys, std::min(n, j + 2 * keys), dim);
    fetch_ahead(entries.v, s.entries, j, j + keys, dim);
    dot_keys(entries.k + s.entries[j], keys, dim, group, s);
    for (int i = 0; i < keys; ++i) {
      for (int h = 0; h < group; ++h) {
        s.scores[h * kPartition + j + i] = s.dots[i * group + h] * a.scale;
      }
    }
    j += keys;
  }
  if (scaled) scale_terms(s.k_scales, group, n, s.scores);
  for (int h = 0; h < group; ++h) {
    softmax_terms(s.scores + h * kPartition, n, partials[h]);
    std::fill_n(partials[h].acc, dim, 0.0f);
  }
  if (scaled) scale_terms(s.v_scales, group, n, s.scores);
  weigh_values(entries.v, group, dim, n, s, partials);
}

// The same over the row's keys in a partition.
template <class T, class TPage>
void attend(const ops::PagedAttentionArgs& a, int row, int kv_head, int partition,
            AttentionScratch& s, Partial* partials) {
  const ops::KvPages& pages = a.pages;
  const KeyRange keys(a, partition, a.batch.positions[row]);
  if (keys.count <= 0) {
    for (int h = 0; h < a.num_heads / pages.num_kv_heads; ++h) clear(partials[h], pages.head_dim);
    return;
  }
  locate(a, a.batch.row_slots[row], kv_head, keys, s);
  const Entries<TPage> entries{static_cast<const TPage*>(pages.k_pages),
                               static_cast<const TPage*>(pages.v_pages), keys.begin,
                               pages.page_tokens};
  attend_entries<T>(a, row, kv_head, entries, keys.count, s, partials);
}

// A block's rows over a partition of FP8 entries, which are decoded once.
template <class T>
void attend_decoded(const ops::PagedAttentionArgs& a, const RowBlock& block, int partition,
                    AttentionScratch& s) {
  const int dim = a.pages.head_dim;
  const int group = a.num_heads / a.pages.num_kv_heads;
  // Rows of a segment: the last sees most.
  const int last_row = block.first_row + block.num_rows - 1;
  const KeyRange all(a, partition, a.batch.positions[last_row]);
  locate(a, a.batch.row_slots[last_row], block.kv_head, all, s);
  for (int j = 0; j < all.count; ++j) {
    decode(static_cast<const e4m3*>(a.pages.k_pages) + s.entries[j], dim, s.k_decoded + j * dim);
    decode(static_cast<const e4m3*>(a.pages.v_pages) + s.entries[j], dim, s.v_decoded + j * dim);
    s.entries[j] = std::int64_t{j} * dim;
  }
  const Entries<float> entries{s.k_decoded, s.v_decoded, 0, kPartition};
  for (int r = 0; r < block.num_rows; ++r) {
    const int row = block.first_row + r;
    const KeyRange keys(a, partition, a.batch.positions[row]);
    if (keys.count <= 0) continue;
    attend_entries<T>(a, row, block.kv_head, entries, keys.count, s, s.partial);
    for (int h = 0; h < group; ++h) combine(s.partial[h], dim, s.state[r * group + h]);
  }
}

template <class T>
void write_head(const ops::PagedAttentionArgs& a, int row, int head, const Partial& p) {
  const int dim = a.pages.head_dim;
  const std::int64_t index = std::int64_t{row} * a.num_heads + head;
  T* out = static_cast<T*>(a.out) + index * dim;
  const T* gate =
      a.gate == nullptr ? nullptr : static_cast<const T*>(a.gate) + index * a.gate_head_stride;
  // A row that sees no entry gives zeros.
  const F32x16 sum = set16(p.sum == 0.0f ? 1.0f : p.sum);
  for (int d = 0; d < dim; d += kLanes) {
    F32x16 o = div16(load16(p.acc + d), sum);
    if (gate != nullptr) o = mul16(o, sigmoid16(load16(gate + d)));
    store16(o, out + d);
  }
}

template <class T, class TPage>
void attend_block(const ops::PagedAttentionArgs& a, const RowBlock& block, AttentionScratch& s) {
  const int dim = a.pages.head_dim;
  const int group = a.num_heads / a.pages.num_kv_heads;
  int partitions = 0;
  for (int r = 0; r < block.num_rows; ++r) {
    partitions = std::max(partitions, num_partitions(a.batch.positions[block.first_row + r]));
    for (int h = 0; h < group; ++h) clear(s.state[r * group + h], dim);
  }
  for (int p = a.first_index / kPartition; p < partitions; ++p) {
    if constexpr (std::is_same_v<TPage, e4m3>) {
      if (block.num_rows > 1) {
        attend_decoded<T>(a, block, p, s);
        continue;
      }
    }
    for (int r = 0; r < block.num_rows; ++r) {
      const int row = block.first_row + r;
      if (p >= num_partitions(a.batch.positions[row])) continue;
      attend<T, TPage>(a, row, block.kv_head, p, s, s.partial);
      for (int h = 0; h < group; ++h) combine(s.partial[h], dim, s.state[r * group + h]);
    }
  }
  for (int r = 0; r < block.num_rows; ++r) {
    for (int h = 0; h < group; ++h) {
      write_head<T>(a, block.first_row + r, block.kv_head * group + h, s.state[r * group + h]);
    }
  }
}

// The three entry points, for any pair of types.
template <class T, class Function>
HWY_INLINE void with_page_type(const ops::PagedAttentionArgs& a, const Function& function) {
  if (ops::is_fp8(a.pages.format)) return function.template run<T, e4m3>();
  if (a.pages.format == ops::KvFormat::kF32) return function.template run<T, float>();
  function.template run<T, bf16>();
}

template <class Function>
HWY_INLINE void with_types(const ops::PagedAttentionArgs& a, const Function& function) {
  if (a.dtype == DType::kF32) return with_page_type<float>(a, function);
  with_page_type<bf16>(a, function);
}

struct AttendBlock {
  const ops::PagedAttentionArgs& a;
  const RowBlock& block;
  AttentionScratch& s;
  template <class T, class TPage>
  void run() const {
    attend_block<T, TPage>(a, block, s);
  }
};

struct Attend {
  const ops::PagedAttentionArgs& a;
  int row, kv_head, partition;
  AttentionScratch& s;
  Partial* partials;
  template <class T, class TPage>
  void run() const {
    attend<T, TPage>(a, row, kv_head, partition, s, partials);
  }
};

void attention_block(const ops::PagedAttentionArgs& a, const RowBlock& block, AttentionScratch& s) {
  with_types(a, AttendBlock{a, block, s});
}

void attention_partial(const ops::PagedAttentionArgs& a, int row, int kv_head, int partition,
                       AttentionScratch& s, Partial* partials) {
  with_types(a, Attend{a, row, kv_head, partition, s, partials});
}

void attention_combine(const Partial& p, int dim, Partial& state) { combine(p, dim, state); }

void attention_write(const ops::PagedAttentionArgs& a, int row, int head, const Partial& p) {
  if (a.dtype == DType::kF32) return write_head<float>(a, row, head, p);
  write_head<bf16>(a, row, head, p);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(attention_block);
HWY_EXPORT(attention_partial);
HWY_EXPORT(attention_combine);
HWY_EXPORT(attention_write);

namespace {

AttentionScratch& scratch_of(const CpuBackend& backend, int thread) {
  return *reinterpret_cast<AttentionScratch*>(backend.thread_scratch(thread));
}

int blocks_of(const ops::Segment& segment, int block_rows) {
  return (segment.num_rows + block_rows - 1) / block_rows;
}

void by_blocks(const CpuBackend& backend, const ops::PagedAttentionArgs& args, int block_rows,
               std::int64_t num_blocks) {
  const auto block = HWY_DYNAMIC_DISPATCH(attention_block);
  parallel_ranges(
      backend, num_blocks * args.pages.num_kv_heads, 1,
      [&](std::int64_t first, std::int64_t last, int thread) {
        for (std::int64_t task = first; task < last; ++task) {
          auto index = static_cast<int>(task / args.pages.num_kv_heads);
          const ops::Segment* segment = args.batch.segments;
          for (; index >= blocks_of(*segment, block_rows); ++segment) {
            index -= blocks_of(*segment, block_rows);
          }
          const int offset = index * block_rows;
          block(args,
                {segment->first_row + offset, std::min(block_rows, segment->num_rows - offset),
                 static_cast<int>(task % args.pages.num_kv_heads)},
                scratch_of(backend, thread));
        }
      });
}

// Partitions of a few rows in parallel, `wave` partitions of every row at a time.
void by_partitions(const CpuBackend& backend, const ops::PagedAttentionArgs& args, int wave,
                   int partitions) {
  const ops::BatchView& batch = args.batch;
  const int kv_heads = args.pages.num_kv_heads;
  const int group = args.num_heads / kv_heads;
  const std::int64_t heads = std::int64_t{batch.num_rows} * args.num_heads;
  auto* state = reinterpret_cast<Partial*>(backend.shared_scratch());  // [rows * num_heads]
  Partial* partials = state + heads;                                   // [wave][rows * num_heads]
  const auto partial = HWY_DYNAMIC_DISPATCH(attention_partial);
  const auto combine = HWY_DYNAMIC_DISPATCH(attention_combine);
  const auto write = HWY_DYNAMIC_DISPATCH(attention_write);
  for (std::int64_t i = 0; i < heads; ++i) {
    state[i].max = -std::numeric_limits<float>::infinity();
    state[i].sum = 0;
    std::fill_n(state[i].acc, args.pages.head_dim, 0.0f);
  }
  for (int start = args.first_index / kPartition; start < partitions; start += wave) {
    const int stop = std::min(partitions, start + wave);
    // Rows vary fastest, so that rows of one sequence meet the same keys in the cache.
    parallel_ranges(backend, std::int64_t{stop - start} * kv_heads * batch.num_rows, 1,
                    [&](std::int64_t first, std::int64_t last, int thread) {
                      for (std::int64_t task = first; task < last; ++task) {
                        const int row = static_cast<int>(task % batch.num_rows);
                        const int kv_head = static_cast<int>(task / batch.num_rows % kv_heads);
                        const int p = start + static_cast<int>(task / batch.num_rows / kv_heads);
                        if (p >= num_partitions(batch.positions[row])) continue;
                        partial(args, row, kv_head, p, scratch_of(backend, thread),
                                partials + (p - start) * heads +
                                    std::int64_t{row} * args.num_heads + kv_head * group);
                      }
                    });
    parallel_ranges(backend, heads, 1, [&](std::int64_t first, std::int64_t last, int) {
      for (std::int64_t i = first; i < last; ++i) {
        const int row = static_cast<int>(i / args.num_heads);
        const int end = std::min(stop, num_partitions(batch.positions[row]));
        for (int p = start; p < end; ++p) {
          combine(partials[(p - start) * heads + i], args.pages.head_dim, state[i]);
        }
        if (stop == partitions) write(args, row, static_cast<int>(i % args.num_heads), state[i]);
      }
    });
  }
}

}  // namespace

void paged_attention(CpuBackend& backend, const ops::PagedAttentionArgs& args) {
  check_rows_have_pages(args.batch, args.pages);
  const int group = args.num_heads / args.pages.num_kv_heads;
  const int block_rows = std::clamp(ops::kMaxHeadGroup / group, 1, kBlockRows);
  std::int64_t num_blocks = 0;
  for (int i = 0; i < args.batch.num_segments; ++i) {
    num_blocks += blocks_of(args.batch.segments[i], block_rows);
  }
  int partitions = 0;
  for (int r = 0; r < args.batch.num_rows; ++r) {
    partitions = std::max(partitions, num_partitions(args.batch.positions[r]));
  }
  const std::int64_t heads = std::int64_t{args.batch.num_rows} * args.num_heads;
  const auto capacity = static_cast<std::int64_t>(kSharedScratchBytes / sizeof(Partial));
  const auto wave = static_cast<int>(std::min<std::int64_t>(partitions, capacity / heads - 1));
  const bool few_blocks =
      backend.num_threads() > 1 && num_blocks * args.pages.num_kv_heads < 2 * backend.num_threads();
  if (few_blocks && partitions - args.first_index / kPartition > 1 && wave > 1) {
    by_partitions(backend, args, wave, partitions);
  } else {
    by_blocks(backend, args, block_rows, num_blocks);
  }
}

}  // namespace tandem::cpu
#endif  // HWY_ONCE
