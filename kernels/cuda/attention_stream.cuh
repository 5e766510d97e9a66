// What flows into a block of attention of generated rows: queries, keys and values of one span
// after another, through a ring in shared memory that stays full across the borders of spans. A
// span's end thus costs the block that works on it no memory latency; only its first span does.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/attention_units.cuh"
#include "kernels/cuda/device/pages.cuh"

namespace tandem::cuda {

// TPage: bf16 or e4m3, what pages hold.
template <int kPaddedDim, int kColumnCount, class TPage>
struct Shape {
  using Page = TPage;
  static constexpr bool kCodes = std::is_same_v<TPage, e4m3>;
  static constexpr int kElementBytes = sizeof(TPage);
  static constexpr int kDim = kPaddedDim;
  static constexpr int kColumns = kColumnCount;
  static constexpr int kThreads = kGeneratedThreads;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kBlocks = generated_blocks(kColumns, kElementBytes);
  static constexpr int kTiles = kColumns / 8;
  static constexpr int kAhead = steps_ahead(kColumns, kElementBytes);
  static constexpr int kStages = ring_stages(kColumns, kElementBytes);
  // Of 16 bytes: of a row of pages, and of a query.
  static constexpr int kPieceValues = 16 / kElementBytes;
  static constexpr int kPieces = kDim / kPieceValues;
  static constexpr int kQueryPieces = kDim / 8;
  // Scores of a step: a warp has 16 keys, and a part of the dimensions if there are warps enough.
  static constexpr int kStepKeys = step_keys(kDim);
  static constexpr int kKeyTiles = kStepKeys / 16;
  static constexpr int kScoreParts = score_parts(kDim);
  static constexpr int kScoreGroups = kDim / kScoreParts / 32;  // of 32 dimensions
  static constexpr int kScorePitch = score_pitch(kDim);
  // Values: a warp has a part of the dimensions, and all keys.
  static constexpr int kDimTiles = kDim / 16 / kWarps;
  static_assert(kKeyTiles * kScoreParts == kWarps && kTiles <= kWarps);
};

// A block's shared memory. What plan_generated() counts, and a little of fixed size.
template <class S>
struct Shared {
  static constexpr int kStagePieces = stage_bytes(S::kElementBytes) / 16;
  static constexpr int kQueryPieces = S::kColumns * S::kQueryPieces;
  // The one worked on, those of the steps that are on their way, and of one whose pages are.
  static constexpr int kUnits = S::kAhead + 2;

  uint4* ring;     // [kStages][kStepKeys][kPieces]
  uint4* queries;  // [kAhead][kColumns][kQueryPieces], of spans by turns
  float* scores;   // [kScoreParts][kColumns][kScorePitch]
  uint4* weights;  // [kTiles][kKeyTiles][kWarp], if there are several tiles: operands for all warps
  float* factors;  // [kColumns], by which a step rescales the values
  float2* headers;  // [kColumns], {largest score, sum} of a span
  Unit* units;      // [kUnits], spans in the order of work
  float* scales;    // [kStages][kStepKeys], FP8: of the keys or values in the ring
};

template <class S>
class SpanStream {
 public:
  __device__ SpanStream(const ops::PagedAttentionArgs& a, const GeneratedPlan& plan,
                        const Shared<S>& s)
      : a_(a), plan_(plan), s_(s) {
    now_ = look_ahead();
    for (int step = 0; step < S::kAhead; ++step) {
      __syncthreads();  // the step's unit can be seen
      fetch_keys();
      fetch_values();
    }
  }

  // Waits for this thread's copies of the step's queries and keys, where it comes before
  // fetch_keys(); of its values, where before fetch_values(). Keys, queries and values of a step
  // are a group of copies each; either way as many groups are later ones, which may be under way.
  __device__ __forceinline__ void wait() const { wait_async<3 * S::kAhead - 2>(); }

  // Both once a step, by all threads, for the step kAhead after it. Keys go where the values of the
  // step before lie, values where the keys of this step do: those must have been used.
  __device__ __forceinline__ void fetch_keys() {
    if (now_.exists) fetch(a_.pages.k_pages, a_.pages.k_scales);
    commit_async();
    next_ = look_ahead();  // its page table entries are on their way for a step
  }
  // Queries too, if that step begins a span, in place of those of kAhead spans before: as every
  // span has a step, they have been used.
  __device__ __forceinline__ void fetch_values() {
    if (now_.starts_span) fetch_queries();
    commit_async();
    if (now_.exists) fetch(a_.pages.v_pages, a_.pages.v_scales);
    commit_async();
    now_ = next_;
  }

 private:
  static constexpr int kLaneKeys = S::kStepKeys / kWarp;

  struct Step {
    bool exists = false, starts_span = false;
    uint32_t rows[kLaneKeys];  // of pages, of keys lane, lane + 32, ..
    int kv_head = 0;
  };

  __device__ __forceinline__ void fetch(const void* plane, const float* scales) {
    const int thread = static_cast<int>(threadIdx.x);
    const int piece = thread % S::kPieces;
    const bool in_row = piece * S::kPieceValues < a_.pages.head_dim;
    uint4* stage = s_.ring + filling_ * Shared<S>::kStagePieces;
    constexpr int kKeysAtOnce = S::kThreads / S::kPieces;
#pragma unroll
    for (int i = 0; i < S::kStepKeys / kKeysAtOnce; ++i) {
      const int key = i * kKeysAtOnce + thread / S::kPieces;
      const uint32_t row = __shfl_sync(kAllLanes, now_.rows[i * kKeysAtOnce / kWarp], key % kWarp);
      const bool valid = in_row && row != kNoRow;
      copy_async16(
          stage + place_of_piece<S::kPieces>(key, piece),
          static_cast<const typename S::Page*>(plane) +
              (valid ? std::int64_t{row} * a_.pages.head_dim + piece * S::kPieceValues : 0),
          valid);
    }
    if constexpr (S::kCodes) fetch_scales(scales);
    filling_ = filling_ + 1 == S::kStages ? 0 : filling_ + 1;
  }

  // A thread for each key. Zeros for keys that nobody sees, as for their codes.
  __device__ __forceinline__ void fetch_scales(const float* plane) {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    float* stage = s_.scales + filling_ * S::kStepKeys;
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) {
      if (threadIdx.x / kWarp != i) continue;
      const uint32_t row = now_.rows[i];
      const bool valid = row != kNoRow;
      copy_async4(stage + i * kWarp + lane,
                  plane + (valid ? scale_index(a_.pages.format, row, now_.kv_head) : 0), valid);
    }
  }

  __device__ __forceinline__ void fetch_queries() {
    const Unit& unit = s_.units[fetched_ % Shared<S>::kUnits];
    uint4* queries = s_.queries + fetched_ % S::kAhead * Shared<S>::kQueryPieces;
    ++fetched_;
    for (int i = static_cast<int>(threadIdx.x); i < Shared<S>::kQueryPieces; i += S::kThreads) {
      const int column = i / S::kQueryPieces, piece = i % S::kQueryPieces;
      const int row = column / plan_.heads_per_unit, head = column % plan_.heads_per_unit;
      const bool valid =
          row < unit.num_rows && head < unit.num_heads && piece * 8 < a_.pages.head_dim;
      const std::int64_t query =
          std::int64_t{unit.first_row + row} * a_.num_heads + unit.first_head + head;
      copy_async16(
          queries + place_of_piece<S::kQueryPieces>(column, piece),
          static_cast<const bf16*>(a_.q) + (valid ? query * a_.pages.head_dim + piece * 8 : 0),
          valid);
    }
  }

  // One more step: its page rows, and its unit for others to see after the next barrier.
  __device__ __forceinline__ Step look_ahead() {
    Step step;
    if (!done_) {
      key_ += S::kStepKeys;
      if (key_ >= end_) {
        next_span();
        step.starts_span = !done_;
      }
    }
    step.exists = !done_;
    step.kv_head = kv_head_;
    const int lane = static_cast<int>(threadIdx.x % kWarp);
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) {
      const int index = key_ + i * kWarp + lane;
      const bool valid = step.exists && index >= a_.first_index && index < end_;
      step.rows[i] = valid ? page_row(a_.batch, a_.pages, slot_, index, kv_head_) : kNoRow;
    }
    return step;
  }

  // Items of one length lie beside each other, the longest first. Every other turn goes through the
  // blocks backwards: who has taken the longest of one turn takes the shortest of the next.
  __device__ __forceinline__ int next_item() {
    const auto blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    const int place = turns_ % 2 == 0 ? block : blocks - 1 - block;
    return turns_++ * blocks + place;
  }

  __device__ void next_span() {
    Unit* place = s_.units + found_ % Shared<S>::kUnits;
    Unit unit;
    if (spans_left_ > 0) {
      --spans_left_;
      unit = s_.units[(found_ - 1) % Shared<S>::kUnits];
      ++unit.span;
    } else {
      done_ = !walk_.find(a_, plan_, next_item(), unit);
      if (done_) unit.num_rows = 0;
      spans_left_ = unit.shared || done_ ? 0 : unit.num_spans - 1;
      slot_ = unit.slot;
      kv_head_ = unit.kv_head;
    }
    if (threadIdx.x == 0) *place = unit;
    ++found_;
    key_ = unit.first_key();
    end_ = unit.end();
  }

  const ops::PagedAttentionArgs& a_;
  const GeneratedPlan& plan_;
  const Shared<S>& s_;
  Walk walk_;
  int turns_ = 0;       // items taken so far
  bool done_ = false;   // there is none
  int spans_left_ = 0;  // of a unit that is not shared
  int slot_ = 0, kv_head_ = 0;
  int key_ = 0, end_ = 0;  // of the step that was looked ahead to, and its span
  int found_ = 0;          // units
  int fetched_ = 0;        // units whose queries have been fetched
  int filling_ = 0;        // stage of the ring
  Step now_, next_;        // whose keys or values are fetched next, and the one after
};

}  // namespace tandem::cuda
