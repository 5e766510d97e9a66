// Choosing tokens. Threads take rows. Logits are shifted by the row's largest and divided by the
// temperature, x_i = (logit_i - max) / T, so that nothing overflows; softmax and argmax do not see
// the shift. Weights e^x_i are fp32; their sums (normalizers, top-p's running mass) are double, so
// that a border of top-p is where exact sums would put it.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sample.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/counter_rng.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

#ifndef TANDEM_KERNELS_CPU_SAMPLE_TYPES_
#define TANDEM_KERNELS_CPU_SAMPLE_TYPES_
namespace tandem::cpu {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// One id that is not impossible.
struct Candidate {
  float logit;
  float weight;  // e^x
  std::int32_t id;
};

// Most probable first, ties to the lower id: a total order.
bool more_probable(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

}  // namespace
}  // namespace tandem::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {
namespace {

HWY_INLINE F32x16 nan_to_lowest(const F32x16& x) { return if_ordered16(x, x, set16(kLowest)); }

// The largest of n logits, and the first index that holds it; {-inf, 0} for n = 0 or only NaN.
ops::ArgmaxResult largest_logit(const float* logits, std::int64_t n) {
  F32x16 largest = set16(kLowest);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) largest = max16(nan_to_lowest(load16(logits + i)), largest);
  float value = reduce_max16(largest);
  for (; i < n; ++i) value = logits[i] > value ? logits[i] : value;
  for (std::int64_t id = 0; id < n; ++id) {
    if (logits[id] == value) return {logits[id], static_cast<std::int32_t>(id)};
  }
  return {kLowest, 0};
}

// out[i] = e^((logits[i] - max) / temperature), 0 for NaN.
HWY_INLINE void weights16(const float* logits, int n, float max, float temperature, float* out) {
  const F32x16 logit = n == kLanes ? load16(logits) : load16_n(logits, n);
  store16(exp16(div16(sub16(nan_to_lowest(logit), set16(max)), set16(temperature))), out);
}

// Ids with a finite logit, in ascending order; returns their number.
std::int64_t collect_candidates(const float* logits, std::int64_t n, float max, float temperature,
                                Candidate* out) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const int width = static_cast<int>(std::min<std::int64_t>(kLanes, n - i));
    float weights[kLanes];
    weights16(logits + i, width, max, temperature, weights);
    for (int j = 0; j < width; ++j) {
      if (logits[i + j] > kLowest) {
        out[count++] = {logits[i + j], weights[j], static_cast<std::int32_t>(i + j)};
      }
    }
  }
  return count;
}

// log sum_i e^(logits[i] - max)
float log_sum(const float* logits, std::int64_t n, float max) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const int width = static_cast<int>(std::min<std::int64_t>(kLanes, n - i));
    float weights[kLanes];
    weights16(logits + i, width, max, 1.0f, weights);
    for (int j = 0; j < width; ++j) sum += weights[j];
  }
  return static_cast<float>(std::log(sum));
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(largest_logit);
HWY_EXPORT(collect_candidates);
HWY_EXPORT(log_sum);

namespace {

// Moves the k most probable to the front; returns how many are kept.
std::int64_t keep_top_k(Candidate* candidates, std::int64_t count, std::int32_t k) {
  if (k <= 0 || k >= count) return count;
  std::nth_element(candidates, candidates + k, candidates + count, more_probable);
  return k;
}

// Moves the smallest set of the most probable whose mass reaches top_p to the front.
std::int64_t keep_top_p(Candidate* candidates, std::int64_t count, float top_p) {
  if (top_p >= 1.0f) return count;
  double total = 0;
  for (std::int64_t i = 0; i < count; ++i) total += candidates[i].weight;
  const double wanted = double{top_p} * total;
  // The set is small as a rule: order a growing prefix instead of the whole vocabulary.
  double mass = 0;
  std::int64_t ordered = 0;
  for (std::int64_t prefix = std::min<std::int64_t>(count, 256);;) {
    if (prefix < count) {
      std::nth_element(candidates + ordered, candidates + prefix, candidates + count,
                       more_probable);
    }
    std::sort(candidates + ordered, candidates + prefix, more_probable);
    for (; ordered < prefix; ++ordered) {
      mass += candidates[ordered].weight;
      if (mass >= wanted) return ordered + 1;
    }
    if (prefix == count) return count;
    prefix = std::min(count, prefix * 8);
  }
}

// The candidate with the largest x + Gumbel noise; ties to the lower id.
std::int32_t draw(const Candidate* candidates, std::int64_t count, float max,
                  const ops::SampleParams& params) {
  static const float largest_noise = gumbel(0xffffffffu);
  float best = kLowest;
  std::int32_t id = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    const Candidate& c = candidates[i];
    // e^x is the probability over the largest one's.
    if (c.weight < params.min_p) continue;
    const float x = (c.logit - max) / params.temperature;
    // Rounding is monotonic: whatever this id's noise is, it would lose.
    if (x + largest_noise < best) continue;
    const float score = x + gumbel(random_bits(params.key, params.position, RngPurpose::kSample,
                                               static_cast<std::uint32_t>(c.id)));
    if (id < 0 || score > best || (score == best && c.id < id)) {
      best = score;
      id = c.id;
    }
  }
  return id;
}

std::int32_t choose(const ops::SampleParams& params, const float* logits, std::int64_t n,
                    const ops::ArgmaxResult& largest, Candidate* candidates) {
  // An infinite maximum leaves no distribution to draw from.
  if (!(params.temperature > 0.0f) || std::isinf(largest.value)) return largest.id;
  std::int64_t count = HWY_DYNAMIC_DISPATCH(collect_candidates)(logits, n, largest.value,
                                                                params.temperature, candidates);
  count = keep_top_k(candidates, count, params.top_k);
  count = keep_top_p(candidates, count, params.top_p);
  const std::int32_t id = draw(candidates, count, largest.value, params);
  return id < 0 ? largest.id : id;
}

}  // namespace

void argmax_rows(CpuBackend& backend, const ops::ArgmaxRowsArgs& args) {
  const std::int64_t n =
      std::clamp<std::int64_t>(args.valid_vocab - args.shard_begin, 0, args.shard_rows);
  const auto largest_of = HWY_DYNAMIC_DISPATCH(largest_logit);
  parallel_ranges(
      backend, args.num_rows, rows_of_work(n), [&](std::int64_t first, std::int64_t last, int) {
        for (std::int64_t r = first; r < last; ++r) {
          const ops::ArgmaxResult local = largest_of(args.logits + r * args.stride, n);
          args.out[r] = {local.value, static_cast<std::int32_t>(args.shard_begin + local.id)};
        }
      });
}

void merge_argmax(CpuBackend&, const ops::MergeArgmaxArgs& args) {
  for (int row = 0; row < args.num_rows; ++row) {
    args.out[row] = {.id = ops::best_of_ranks(args.parts, args.num_ranks, args.num_rows, row).id};
  }
}

std::size_t sample_scratch_bytes(const CpuBackend& backend, std::int64_t vocab) {
  return sizeof(Candidate) * static_cast<std::size_t>(vocab) *
         static_cast<std::size_t>(backend.num_threads());
}

void sample_rows(CpuBackend& backend, const ops::SampleRowsArgs& args) {
  const std::int64_t n = args.valid_vocab;
  const auto largest_of = HWY_DYNAMIC_DISPATCH(largest_logit);
  const auto log_sum_of = HWY_DYNAMIC_DISPATCH(log_sum);
  parallel_ranges(
      backend, args.num_rows, 1, [&](std::int64_t first, std::int64_t last, int thread) {
        Candidate* candidates = static_cast<Candidate*>(args.scratch) + thread * n;
        for (std::int64_t r = first; r < last; ++r) {
          const float* logits = args.logits + r * args.stride;
          const ops::ArgmaxResult largest = largest_of(logits, n);
          ops::SampleResult& out = args.out[r];
          out.id = choose(args.params[r], logits, n, largest, candidates);
          out.logprob = 0;
          if (args.want_logprob) {
            out.logprob = (logits[out.id] - largest.value) - log_sum_of(logits, n, largest.value);
          }
        }
      });
}

}  // namespace tandem::cpu
#endif  // HWY_ONCE
