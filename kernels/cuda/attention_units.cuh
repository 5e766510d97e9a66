// What there is to do for generated rows, found out on the device: the host knows neither how long
// contexts are nor how rows are spread over segments when it enqueues or captures a launch.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/attention_softmax.cuh"

namespace tandem::cuda {

// What a block works on: some rows of a segment and some heads of a KV head, and one span of their
// context.
struct alignas(16) Unit {
  int slot = 0;
  int first_row = 0, num_rows = 0;  // of the batch; 0 rows: there is nothing more to do
  int first_position = 0;           // of the first of them; rows of a segment are neighbours
  int kv_head = 0;
  int first_head = 0, num_heads = 0;
  int first_span = 0, num_spans = 1;
  int span = 0;
  int first_bundle = 0, num_bundles = 0;  // in scratch memory

  // Other blocks take its other spans.
  __device__ __forceinline__ bool shared() const { return num_bundles > 0; }
  __device__ __forceinline__ bool ends() const { return span == first_span + num_spans - 1; }
  __device__ __forceinline__ int first_key() const { return span_begin(span); }
  // Behind the last index of the span that one of the rows sees.
  __device__ __forceinline__ int end() const {
    return min(span_begin(span + 1), first_position + num_rows);
  }
  __device__ __forceinline__ bool has(const GeneratedPlan& plan, int column) const {
    return column / plan.heads_per_unit < num_rows && column % plan.heads_per_unit < num_heads;
  }
};
static_assert(sizeof(Unit) == kUnitBytes);

// n / d, of n >= 0 and d > 0. Most divisors here are powers of two, often 1, and blocks begin with
// one division after the other.
__device__ __forceinline__ int quotient(int n, int d) {
  return (d & (d - 1)) == 0 ? n >> (31 - __clz(d)) : n / d;
}

// Finds the items of work: of a shared segment the pairs of span and unit, the last spans, which
// are the longest, first; of another one its units, with their first span. All warps of a block
// walk alike.
class Walk {
 public:
  // `item` must not be below that of the call before. False: there are no more.
  __device__ bool find(const ops::PagedAttentionArgs& a, const GeneratedPlan& plan, int item,
                       Unit& unit) {
    if (item >= end_) return false;  // most blocks' last question, answered without a walk
    for (; segment_ < a.batch.num_segments; segment_ += kWarp) {
      const int index = segment_ + static_cast<int>(threadIdx.x % kWarp);
      const ops::Segment segment =
          index < a.batch.num_segments ? a.batch.segments[index] : ops::Segment{};
      const int groups = quotient(segment.num_rows + plan.rows_per_unit - 1, plan.rows_per_unit);
      const int units = groups * a.pages.num_kv_heads * plan.head_units;
      const int first_span = span_of(a.first_index);
      const int last_span =
          max(first_span, span_of(max(0, segment.start_position + segment.num_rows - 1)));
      const int spans = last_span - first_span + 1;
      const int bundles = last_span / kBundleSpans - first_span / kBundleSpans + 1;
      const int bundles_needed = spans > 1 ? units * bundles : 0;
      const int bundles_end = bundles_ + sum_to_lane(bundles_needed);
      const bool shared = spans > 1 && bundles_end <= plan.bundles;
      const int items = shared ? units * spans : units;
      const int items_end = items_ + sum_to_lane(items);
      if (segment_ + kWarp >= a.batch.num_segments) {
        end_ = __shfl_sync(kAllLanes, items_end, kWarp - 1);
      }
      const unsigned holders = __ballot_sync(kAllLanes, item < items_end);
      if (holders == 0) {
        items_ = __shfl_sync(kAllLanes, items_end, kWarp - 1);
        bundles_ = __shfl_sync(kAllLanes, bundles_end, kWarp - 1);
        continue;
      }
      const int holder = __ffs(static_cast<int>(holders)) - 1;
      const auto held = [&](int x) { return __shfl_sync(kAllLanes, x, holder); };
      const int offset = item - held(items_end - items);
      const int num_units = held(units), num_groups = held(groups);
      const int segment_rows = held(segment.num_rows), first_row = held(segment.first_row);
      const int start_position = held(segment.start_position);
      const int spans_before = quotient(offset, num_units);  // if they are shared
      const int number = offset - spans_before * num_units;
      const int heads = quotient(number, num_groups);
      const int row = (number - heads * num_groups) * plan.rows_per_unit;
      const int heads_of_kv = a.num_heads / a.pages.num_kv_heads;
      const int kv_head = quotient(heads, plan.head_units);
      const int head = (heads - kv_head * plan.head_units) * plan.heads_per_unit;
      unit.slot = held(segment.slot);
      unit.first_row = first_row + row;
      unit.num_rows = min(plan.rows_per_unit, segment_rows - row);
      unit.kv_head = kv_head;
      unit.first_head = kv_head * heads_of_kv + head;
      unit.num_heads = min(plan.heads_per_unit, heads_of_kv - head);
      unit.first_position = start_position + row;
      unit.first_span = first_span;
      unit.num_spans = held(spans);
      unit.num_bundles = held(shared ? bundles : 0);
      unit.first_bundle = held(bundles_end - bundles_needed) + number * unit.num_bundles;
      unit.span = unit.shared() ? held(last_span) - spans_before : first_span;
      return true;
    }
    return false;
  }

 private:
  int end_ = 0x7fffffff;         // of all items, once it is known
  int segment_ = 0;              // the first of those in the lanes
  int items_ = 0, bundles_ = 0;  // before it
};

}  // namespace tandem::cuda
