// Choosing tokens: one block a row, which goes over the row several times (it stays in the cache).
//
// Ids are ordered by (logit descending, id ascending); a 64-bit rank number holds that order, so
// that "the kept ids" of top-k and of top-p are those with a rank of at least some cut. A cut is
// found digit by digit from histograms of what the ids weigh: 1 for top-k, e^x for top-p. Weights
// are summed as integers in units of 2^-44, which is exact for all that matter and has no order.
// Logits are shifted by the row's largest and divided by the temperature, x = (logit - max) / T.
#include <cooperative_groups.h>

#include <algorithm>

#include "base/counter_rng.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

using Weight = unsigned long long;
using Rank = unsigned long long;

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBins = 4096;
constexpr int kBinsOfThread = kBins / kThreads;
constexpr float kWeightUnit = 0x1p44f;
constexpr std::int32_t kNoId = 0x7fffffff;

struct Best {
  float value = -kInfinity;
  std::int32_t id = kNoId;

  // Larger value, then lower id; NaN never wins.
  __device__ void add(float other, std::int32_t other_id) {
    if (other > value || (other == value && other_id < id)) {
      value = other;
      id = other_id;
    }
  }
};

// The best of all threads' bests; there is one, so the order of comparison does not matter.
__device__ Best block_best(Best best) {
  __shared__ Best of_warp[kWarps];
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const float value = __shfl_xor_sync(kAllLanes, best.value, distance);
    const std::int32_t id = __shfl_xor_sync(kAllLanes, best.id, distance);
    best.add(value, id);
  }
  __syncthreads();
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = best;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) best.add(of_warp[w].value, of_warp[w].id);
  return best;
}

// The largest of n logits and the first id that holds it; {-inf, 0} for n = 0 or only NaN.
__device__ Best largest_logit(const float* logits, std::int64_t n) {
  Best best;
#pragma unroll 8
  for (std::int64_t i = threadIdx.x; i < n; i += kThreads) {
    best.add(logits[i], static_cast<std::int32_t>(i));
  }
  best = block_best(best);
  if (best.id == kNoId) best.id = 0;
  return best;
}

// Blocks that read one row together: one alone takes longer than the weights of a small layer.
constexpr int kArgmaxBlocks = 8;

__global__ void __cluster_dims__(kArgmaxBlocks) __launch_bounds__(kThreads)
    argmax_rows_kernel(ops::ArgmaxRowsArgs a, std::int64_t n) {
  namespace cg = cooperative_groups;
  __shared__ Best of_block[kArgmaxBlocks];  // the first block's is used
  const cg::cluster_group cluster = cg::this_cluster();
  const std::int64_t row = blockIdx.x / kArgmaxBlocks;
  const auto part = static_cast<int>(cluster.block_rank());
  allow_next_kernel();
  wait_for_previous_kernel();
  const std::int64_t share = divide_up(n, kArgmaxBlocks);
  const std::int64_t begin = min(n, part * share);
  const float* logits = a.logits + row * a.stride;
  Best best;
#pragma unroll 8
  for (std::int64_t i = begin + threadIdx.x; i < min(n, begin + share); i += kThreads) {
    best.add(logits[i], static_cast<std::int32_t>(i));
  }
  best = block_best(best);
  if (threadIdx.x == 0) *cluster.map_shared_rank(of_block + part, 0) = best;
  cluster.sync();
  if (part != 0 || threadIdx.x != 0) return;
  for (const Best& other : of_block) best.add(other.value, other.id);
  if (best.id == kNoId) best.id = 0;
  a.out[row] = {best.value, static_cast<std::int32_t>(a.shard_begin + best.id)};
}

constexpr int kMergeThreads = 128;

__global__ void __launch_bounds__(kMergeThreads) merge_argmax_kernel(ops::MergeArgmaxArgs a) {
  allow_next_kernel();
  wait_for_previous_kernel();
  const int row = static_cast<int>(blockIdx.x) * kMergeThreads + static_cast<int>(threadIdx.x);
  if (row >= a.num_rows) return;
  a.out[row] = {ops::best_of_ranks(a.parts, a.num_ranks, a.num_rows, row).id, 0.0f};
}

// Logits in the upper half, as unsigned numbers in their order; ids in the lower, descending.
__device__ __forceinline__ Rank rank_of(float logit, std::int32_t id) {
  const std::uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 equals +0
  const std::uint32_t ordered = bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
  return Rank{ordered} << 32 | (0xffffffffu - static_cast<std::uint32_t>(id));
}

__device__ __forceinline__ float logit_of(Rank rank) {
  const auto ordered = static_cast<std::uint32_t>(rank >> 32);
  return __uint_as_float((ordered >> 31) != 0 ? ordered ^ 0x80000000u : ~ordered);
}

__device__ __forceinline__ std::int32_t id_of(Rank rank) {
  return static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(rank));
}

// One row and its filter.
struct Row {
  const float* logits = nullptr;
  std::int32_t n = 0;
  float max = 0;
  ops::SampleParams params;

  __device__ float x(float logit) const { return (logit - max) / params.temperature; }
  __device__ float weight(float logit) const { return expf(x(logit)); }
};

enum class Measure { kCount, kProbability };

template <Measure kMeasure>
__device__ __forceinline__ Weight measure(const Row& row, float logit) {
  return kMeasure == Measure::kCount ? 1 : __float2ull_rn(row.weight(logit) * kWeightUnit);
}

// Where a target falls in a histogram whose bins are taken from the last to the first.
struct Digit {
  int bin = 0;
  Weight before = 0;  // in the bins taken first
  Weight inside = 0;
};

// Histogram of the ids whose rank shares the digits above `shift + bits` with `prefix` and is at
// least `cut`; returns the sum. [kBins] in shared memory, one of the block's.
template <Measure kMeasure>
__device__ Weight fill_histogram(const Row& row, Rank cut, Rank prefix, int shift, int bits,
                                 Weight* histogram) {
  __shared__ Weight total;
  __syncthreads();  // the last one has been used
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) histogram[i] = 0;
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  const int above = shift + bits;
#pragma unroll 4
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < row.n; i += kThreads) {
    const float logit = row.logits[i];
    if (!(logit > -kInfinity)) continue;
    const Rank rank = rank_of(logit, i);
    if (rank < cut || (above < 64 && (rank ^ prefix) >> above != 0)) continue;
    atomicAdd(histogram + (rank >> shift & ((Rank{1} << bits) - 1)), measure<kMeasure>(row, logit));
  }
  __syncthreads();
  Weight own = 0;
  for (int i = 0; i < kBinsOfThread; ++i) own += histogram[threadIdx.x * kBinsOfThread + i];
  if (own != 0) atomicAdd(&total, own);
  __syncthreads();
  return total;
}

// The sum of the values of all threads up to and including this one.
__device__ Weight block_scan(Weight own) {
  __shared__ Weight of_warp[kWarps];
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  Weight up_to = own;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const Weight left = __shfl_up_sync(kAllLanes, up_to, distance);
    if (lane >= distance) up_to += left;
  }
  __syncthreads();  // the array may still be read from a scan before
  if (lane == kWarp - 1) of_warp[threadIdx.x / kWarp] = up_to;
  __syncthreads();
  for (int w = 0; w < static_cast<int>(threadIdx.x / kWarp); ++w) up_to += of_warp[w];
  return up_to;
}

// The bin that the target-th unit falls into, 1 <= target <= sum of the histogram.
__device__ Digit find_digit(const Weight* histogram, Weight target) {
  __shared__ Digit found;
  // Thread 0 takes the last bins.
  const int first = kBins - 1 - static_cast<int>(threadIdx.x) * kBinsOfThread;
  Weight own = 0;
  for (int i = 0; i < kBinsOfThread; ++i) own += histogram[first - i];
  const Weight up_to = block_scan(own);
  Weight before = up_to - own;
  if (before < target && target <= up_to) {
    for (int i = 0; i < kBinsOfThread; ++i) {
      const Weight inside = histogram[first - i];
      if (target <= before + inside) {
        found = {first - i, before, inside};
        break;
      }
      before += inside;
    }
  }
  __syncthreads();
  return found;
}

// The cut that keeps the first ids, in their order, of those at or above `cut` whose measures
// reach target(total); `cut` itself when all are needed.
template <Measure kMeasure, class Target>
__device__ Rank find_cut(const Row& row, Rank cut, Weight* histogram, const Target& target_of) {
  Rank prefix = 0;
  Weight target = 0;
  int shift = 64;
  for (const int bits : {12, 10, 10, 12, 10, 10}) {
    shift -= bits;
    const Weight total = fill_histogram<kMeasure>(row, cut, prefix, shift, bits, histogram);
    if (shift == 52) {
      target = target_of(total);
      if (target == 0 || target > total) return cut;
    }
    const Digit digit = find_digit(histogram, target);
    prefix |= static_cast<Rank>(digit.bin) << shift;
    target -= digit.before;
    if (shift != 32) continue;
    // One logit is left, perhaps of several ids: are all needed?
    const Weight each = measure<kMeasure>(row, logit_of(prefix));
    if (target + each > digit.inside) return max(cut, prefix);
  }
  return max(cut, prefix);
}

__device__ Weight top_p_target(float top_p, Weight total) {
  const double wanted = ceil(static_cast<double>(top_p) * static_cast<double>(total));
  return max(Weight{1}, static_cast<Weight>(max(wanted, 0.0)));  // at least one id
}

__device__ bool has_top_k(const Row& row) {
  return row.params.top_k > 0 && row.params.top_k < row.n;
}

// The cut of a row's filters, over the whole row.
__device__ Rank cut_of_row(const Row& row, Weight* histogram) {
  Rank cut = 0;
  if (has_top_k(row)) {
    const auto k = static_cast<Weight>(row.params.top_k);
    cut = find_cut<Measure::kCount>(row, cut, histogram, [k](Weight) { return k; });
  }
  if (row.params.top_p < 1.0f) {
    const float p = row.params.top_p;
    cut = find_cut<Measure::kProbability>(row, cut, histogram,
                                          [p](Weight total) { return top_p_target(p, total); });
  }
  return cut;
}

// The first ids of a row, sorted.
struct Pool {
  static constexpr int kSize = 2048;
  Rank* ranks = nullptr;  // [kSize], shared memory; 0 behind the last
  int size = 0;
  Weight row_weight = 0;  // of all ids of the row
};

__device__ void sort_descending(Rank* ranks) {
  for (int width = 2; width <= Pool::kSize; width *= 2) {
    for (int distance = width / 2; distance > 0; distance /= 2) {
      __syncthreads();
      const int thread = static_cast<int>(threadIdx.x);
      const int i = thread / distance * 2 * distance + thread % distance;
      const Rank a = ranks[i], b = ranks[i + distance];
      if ((a < b) == ((i & width) == 0)) {
        ranks[i] = b;
        ranks[i + distance] = a;
      }
    }
  }
  __syncthreads();
}

// The ids of as many leading digits as fit; none if the first digit has too many. `shared`:
// [kBins].
__device__ Pool collect_pool(const Row& row, Weight* shared) {
  static_assert(Pool::kSize == 2 * kThreads &&
                sizeof(Weight) * kBins >=
                    sizeof(Rank) * Pool::kSize + sizeof(std::uint32_t) * kBins);
  constexpr int kDigitShift = 52;
  __shared__ int first_digit, size, next;
  __shared__ Weight row_weight;
  Pool pool{.ranks = shared};
  auto* counts = reinterpret_cast<std::uint32_t*>(shared + Pool::kSize);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) counts[i] = 0;
  for (int i = static_cast<int>(threadIdx.x); i < Pool::kSize; i += kThreads) pool.ranks[i] = 0;
  if (threadIdx.x == 0) {
    first_digit = kBins;
    size = next = 0;
    row_weight = 0;
  }
  __syncthreads();
  Weight weight = 0;
#pragma unroll 4
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < row.n; i += kThreads) {
    const float logit = row.logits[i];
    if (!(logit > -kInfinity)) continue;
    weight += measure<Measure::kProbability>(row, logit);
    atomicAdd(counts + (rank_of(logit, i) >> kDigitShift), 1u);
  }
  atomicAdd(&row_weight, weight);
  __syncthreads();
  // Digits from the last down, while their ids fit.
  const int last = kBins - 1 - static_cast<int>(threadIdx.x) * kBinsOfThread;
  Weight own = 0;
  for (int i = 0; i < kBinsOfThread; ++i) own += counts[last - i];
  Weight up_to = block_scan(own) - own;
  for (int i = 0; i < kBinsOfThread; ++i) {
    up_to += counts[last - i];
    if (up_to > Pool::kSize) break;
    atomicMin(&first_digit, last - i);
    atomicMax(&size, static_cast<int>(up_to));
  }
  __syncthreads();
  const Rank least = static_cast<Rank>(first_digit) << kDigitShift;
#pragma unroll 4
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < row.n && size > 0;
       i += kThreads) {
    const float logit = row.logits[i];
    if (!(logit > -kInfinity)) continue;
    const Rank rank = rank_of(logit, i);
    if (rank >= least) pool.ranks[atomicAdd(&next, 1)] = rank;  // sorted below
  }
  sort_descending(pool.ranks);
  pool.size = size;
  pool.row_weight = row_weight;
  return pool;
}

// The number of leading ids that a row's filters keep; 0 if the pool is too small to tell.
__device__ int kept_of_pool(const Row& row, const Pool& pool) {
  __shared__ int kept;
  __syncthreads();
  if (threadIdx.x == 0) kept = 0;
  int limit = pool.size;
  Weight total = pool.row_weight;
  // Two neighbours a thread.
  const int first = 2 * static_cast<int>(threadIdx.x);
  const auto weight = [&](int i) {
    return i < limit ? measure<Measure::kProbability>(row, logit_of(pool.ranks[i])) : Weight{0};
  };
  if (has_top_k(row)) {
    if (row.params.top_k > pool.size) return 0;
    limit = row.params.top_k;
    if (row.params.top_p >= 1.0f) return limit;
    __shared__ Weight of_top_k;
    const Weight up_to = block_scan(weight(first) + weight(first + 1));
    if (threadIdx.x == kThreads - 1) of_top_k = up_to;
    __syncthreads();
    total = of_top_k;
  }
  const Weight target = top_p_target(row.params.top_p, total);
  const Weight second = block_scan(weight(first) + weight(first + 1));
  const Weight up_to_first = second - weight(first + 1);
  const Weight before = up_to_first - weight(first);
  if (before < target && target <= second) kept = target <= up_to_first ? first + 1 : first + 2;
  __syncthreads();
  return kept;
}

// Gumbel's largest of x + noise among ids that come one after the other. Most lose without their
// noise being computed: it exceeds d only if -log u < e^-d, and -log u >= 1 - u.
class Draw {
 public:
  __device__ explicit Draw(const Row& row) : row_(row) {}

  __device__ void add(float logit, std::int32_t id, std::uint32_t bits) {
    const float x = row_.x(logit);
    const float weight = expf(x);
    // e^x is the probability over the largest one's.
    if (weight < row_.params.min_p) return;
    const float u = uniform01(bits);
    if (1.0f - u > weight * limit_) return;
    const float score = x - logf(-logf(u));
    if (score > best_.value) limit_ = expf(-score) * kMargin;
    best_.add(score, id);
  }
  __device__ std::int32_t winner() const { return block_best(best_).id; }

 private:
  static constexpr float kMargin = 1.001f;  // far more than the functions' errors
  const Row& row_;
  Best best_;
  float limit_ = kInfinity;  // e^-best
};

// Among the ids at or above the cut; kNoId when nothing is kept.
__device__ std::int32_t draw_from_row(const Row& row, Rank cut) {
  Draw draw(row);
  for (std::int32_t first = 4 * static_cast<std::int32_t>(threadIdx.x); first < row.n;
       first += 4 * kThreads) {
    const auto bits = random_block(row.params.key, row.params.position, RngPurpose::kSample,
                                   static_cast<std::uint32_t>(first) / 4);
#pragma unroll
    for (std::int32_t j = 0; j < 4; ++j) {
      const std::int32_t id = first + j;
      if (id >= row.n) break;
      const float logit = row.logits[id];
      if (logit > -kInfinity && rank_of(logit, id) >= cut) draw.add(logit, id, bits[j]);
    }
  }
  return draw.winner();
}

__device__ std::int32_t draw_from_pool(const Row& row, const Pool& pool, int kept) {
  Draw draw(row);
  for (int i = static_cast<int>(threadIdx.x); i < kept; i += kThreads) {
    const std::int32_t id = id_of(pool.ranks[i]);
    draw.add(logit_of(pool.ranks[i]), id,
             random_bits(row.params.key, row.params.position, RngPurpose::kSample,
                         static_cast<std::uint32_t>(id)));
  }
  return draw.winner();
}

__device__ std::int32_t draw_filtered(const Row& row, Weight* shared) {
  if (!has_top_k(row) && row.params.top_p >= 1.0f) return draw_from_row(row, 0);
  const Pool pool = collect_pool(row, shared);
  const int kept = kept_of_pool(row, pool);
  if (kept > 0) return draw_from_pool(row, pool, kept);
  return draw_from_row(row, cut_of_row(row, shared));
}

// log sum_i e^(logit_i - max), at temperature 1.
__device__ float log_sum(const Row& row) {
  __shared__ Weight total;
  __syncthreads();
  if (threadIdx.x == 0) total = 0;
  __syncthreads();
  Weight sum = 0;
#pragma unroll 4
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < row.n; i += kThreads) {
    const float logit = row.logits[i];
    if (logit > -kInfinity) sum += __float2ull_rn(expf(logit - row.max) * kWeightUnit);
  }
  atomicAdd(&total, sum);
  __syncthreads();
  return static_cast<float>(log(static_cast<double>(total) / double{kWeightUnit}));
}

__global__ void __launch_bounds__(kThreads) sample_rows_kernel(ops::SampleRowsArgs a) {
  __shared__ Weight histogram[kBins];  // or a pool
  Row row{.logits = a.logits + blockIdx.x * a.stride,
          .n = static_cast<std::int32_t>(a.valid_vocab),
          .params = a.params[blockIdx.x]};
  const Best largest = largest_logit(row.logits, row.n);
  row.max = largest.value;
  std::int32_t id = largest.id;
  // An infinite maximum leaves no distribution to draw from.
  if (row.params.temperature > 0.0f && !isinf(row.max)) {
    const std::int32_t drawn = draw_filtered(row, histogram);
    if (drawn != kNoId) id = drawn;
  }
  float logprob = 0;
  if (a.want_logprob) logprob = (row.logits[id] - row.max) - log_sum(row);
  if (threadIdx.x == 0) a.out[blockIdx.x] = {id, logprob};
}

}  // namespace

void argmax_rows(CudaBackend& backend, const ops::ArgmaxRowsArgs& args) {
  const std::int64_t n =
      std::min(std::max<std::int64_t>(args.valid_vocab - args.shard_begin, 0), args.shard_rows);
  launch_overlapping(backend, argmax_rows_kernel,
                     static_cast<unsigned>(args.num_rows * kArgmaxBlocks), kThreads, 0, args, n);
}

void merge_argmax(CudaBackend& backend, const ops::MergeArgmaxArgs& args) {
  launch_overlapping(backend, merge_argmax_kernel, blocks_for(args.num_rows, kMergeThreads),
                     kMergeThreads, 0, args);
}

std::size_t sample_scratch_bytes(const CudaBackend&, std::int64_t) {
  return 256;  // shared memory holds the histograms; no array has size zero
}

void sample_rows(CudaBackend& backend, const ops::SampleRowsArgs& args) {
  launch(backend, sample_rows_kernel, static_cast<unsigned>(args.num_rows), kThreads, 0, args);
}

}  // namespace tandem::cuda
