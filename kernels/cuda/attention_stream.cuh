// What flows into a strand of attention of generated rows: keys and values of its steps of one span
// after another, through a ring of slots in shared memory that stays full across the borders of
// spans. A span's end thus costs no memory latency; only a block's first span does. Strands do not
// wait for each other but where spans begin and end.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/attention_units.cuh"
#include "kernels/cuda/device/fragments.cuh"
#include "kernels/cuda/device/mma.cuh"
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
  static constexpr int kThreads = generated_threads(kColumns);
  static constexpr int kBlocks = generated_blocks(kColumns);
  // Warps of a strand, each with its own of the tiles of eight columns.
  static constexpr int kTeam = strand_warps(kColumns);
  static constexpr int kTiles = kColumns / 8 / kTeam;
  // Of 16 bytes: of a row of pages, and of a query.
  static constexpr int kPieceValues = 16 / kElementBytes;
  static constexpr int kPieces = kDim / kPieceValues;
  static constexpr int kRowBytes = kDim * kElementBytes;
  static constexpr int kQueryPieces = kDim / 8;
  static constexpr int kQueryBytes = kDim * 2;
  static constexpr int kScoreGroups = kDim / 32;  // of 32 dimensions
  static constexpr int kDimTiles = kDim / 16;
  static constexpr int kStepKeys = step_keys(kDim, kElementBytes);
  static constexpr int kKeyTiles = kStepKeys / 16;
  static constexpr int kRoundKeys = kStrands * kStepKeys;
};

// A warp's place: strands lie beside each other, so that each processor part has one of each team.
__device__ __forceinline__ int lane_of_warp() { return static_cast<int>(threadIdx.x % kWarp); }
__device__ __forceinline__ int strand_of_warp() {
  return static_cast<int>(threadIdx.x / kWarp % kStrands);
}
__device__ __forceinline__ int place_in_team() {
  return static_cast<int>(threadIdx.x / (kWarp * kStrands));
}

// A barrier for the warps of a strand. Barrier 0 is the block's.
template <class S>
__device__ __forceinline__ void meet_team() {
  if constexpr (S::kTeam == 1) {
    __syncwarp();
  } else {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + strand_of_warp()), "n"(S::kTeam * kWarp) : "memory");
  }
}

// Waits until at most `pending` of this thread's latest groups of copies are under way.
__device__ __forceinline__ void wait_for_all_but(int pending) {
  static_assert(kMinSlots == 2 && kMaxSlots == 6);
  switch (pending) {
    case 1:
      return wait_async<1>();
    case 2:
      return wait_async<2>();
    case 3:
      return wait_async<3>();
    case 4:
      return wait_async<4>();
    default:
      return wait_async<5>();
  }
}

// A number that counts round a ring.
__device__ __forceinline__ int next_place(int place, int places) {
  return place + 1 == places ? 0 : place + 1;
}

template <class S>
class StrandStream {
 public:
  __device__ StrandStream(const ops::PagedAttentionArgs& a, const GeneratedPlan& plan, char* shared)
      : a_(a), plan_(plan), shared_(shared) {
    look_ahead();
  }

  // Keys or values of a step, by turns. The slot that they lie in belongs to the caller until the
  // next call, by when the warps of the strand must have done with it. With the first of a span
  // come its queries, from all of the block.
  __device__ __forceinline__ void next(bool begins_span) {
    if constexpr (S::kTeam > 1) meet_team<S>();  // all of it have used the slot before
#pragma unroll 1
    do {
      fill();
    } while (++filled_ < plan_.slots);
    wait_for_all_but(plan_.slots - 1);
    if (begins_span) {
      __syncthreads();
    } else {
      meet_team<S>();
    }
    held_ = next_place(held_, plan_.slots);
  }

  // Where they lie, by shared address.
  __device__ __forceinline__ uint32_t rows() const { return slot_address(held_); }
  // The same slot of any strand: [kSlotBytes], free for other use once all of its team have used
  // it.
  __device__ __forceinline__ float4* slot_of(int strand) const {
    return reinterpret_cast<float4*>(shared_ + (strand * plan_.slots + held_) * kSlotBytes);
  }

  // Spans in the order of work; the last has no rows.
  __device__ __forceinline__ const Unit& unit() const { return units()[unit_]; }
  __device__ __forceinline__ uint32_t queries() const {
    return shared_address(shared_ + plan_.shared.queries) + query_offset(unit_query_);
  }
  __device__ __forceinline__ void next_unit() {
    unit_ = next_place(unit_, unit_places(plan_.slots));
    unit_query_ = next_place(unit_query_, query_places(plan_.slots));
  }

  // FP8: [2][kStepKeys], of the step whose keys next() has just brought; until next() again.
  __device__ __forceinline__ const float* scales() const { return step_scales(scales_); }
  __device__ __forceinline__ void next_scales() {
    scales_ = next_place(scales_, scale_places(plan_.slots));
  }

 private:
  static constexpr int kLaneKeys = (S::kStepKeys + kWarp - 1) / kWarp;
  static constexpr int kKeysAtOnce = kWarp / S::kPieces;  // that a warp copies, a piece a lane
  static constexpr int kStride = kKeysAtOnce * S::kTeam;  // that its team does
  static constexpr int kCopies = S::kStepKeys / kStride;

  __device__ __forceinline__ uint32_t slot_address(int slot) const {
    return shared_address(shared_) +
           static_cast<uint32_t>((strand_of_warp() * plan_.slots + slot) * kSlotBytes);
  }
  __device__ __forceinline__ Unit* units() const {
    return reinterpret_cast<Unit*>(shared_ + plan_.shared.units) +
           static_cast<int>(threadIdx.x / kWarp) * unit_places(plan_.slots);
  }
  __device__ __forceinline__ uint32_t query_offset(int place) const {
    return static_cast<uint32_t>(place * plan_.used_columns() * S::kQueryBytes);
  }
  __device__ __forceinline__ float* step_scales(int place) const {
    return reinterpret_cast<float*>(shared_ + plan_.shared.scales) +
           (strand_of_warp() * scale_places(plan_.slots) + place) * 2 * S::kStepKeys;
  }

  // The next slot, which is one group of copies, of the step that was looked ahead to: its keys,
  // and with them its scales, and with a span's first its queries; then its values.
  __device__ __forceinline__ void fill() {
    if (copies_) {
      const void* plane = fills_values_ ? a_.pages.v_pages : a_.pages.k_pages;
      copy_rows(static_cast<const char*>(plane), slot_address(filling_));
    }
    if (!fills_values_) {
      if constexpr (S::kCodes) {
        if (copies_) copy_scales();
        filling_scales_ = next_place(filling_scales_, scale_places(plan_.slots));
      }
      if (starts_span_) copy_queries();
    }
    commit_async();
    if (fills_values_) look_ahead();
    fills_values_ = !fills_values_;
    filling_ = next_place(filling_, plan_.slots);
  }

  // Of a plane of pages, that of key lane, lane + 32, ..; kNoRow where nobody sees it.
  __device__ __forceinline__ uint32_t row(int i) const {
    if (in_page_[i] == kNoRow) return kNoRow;
    return (page_[i] * static_cast<uint32_t>(a_.pages.num_kv_heads) +
            static_cast<uint32_t>(kv_head_)) *
               static_cast<uint32_t>(a_.pages.page_tokens) +
           in_page_[i];
  }

  __device__ __forceinline__ void copy_rows(const char* plane, uint32_t slot) {
    const int lane = lane_of_warp();
    const int piece = lane % S::kPieces;
    uint32_t rows[kLaneKeys];
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) rows[i] = row(i);
    const int first_key = place_in_team() * kKeysAtOnce + lane / S::kPieces;
    const RowPieces to(slot, S::kRowBytes, first_key, piece);
    const uint32_t first = __shfl_sync(kAllLanes, rows[0], 0);
    bool follows = first != kNoRow && a_.pages.head_dim == S::kDim;
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) {
      follows =
          follows && rows[i] == first + static_cast<uint32_t>(i * kWarp + lane % S::kStepKeys);
    }
    // Mostly a step lies in one page and everybody sees it: its rows are one piece of memory.
    if (__all_sync(kAllLanes, follows)) {
      const char* from =
          plane + std::int64_t{first} * S::kRowBytes + first_key * S::kRowBytes + piece * 16;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        copy_async16(to.below(i * kStride, S::kRowBytes), from + i * kStride * S::kRowBytes, true);
      }
      return;
    }
    const bool in_row = piece * S::kPieceValues < a_.pages.head_dim;
    const int row_bytes = a_.pages.head_dim * S::kElementBytes;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const uint32_t row =
          __shfl_sync(kAllLanes, rows[i * kStride / kWarp], (first_key + i * kStride) % kWarp);
      const bool valid = in_row && row != kNoRow;
      copy_async16(to.below(i * kStride, S::kRowBytes),
                   plane + (valid ? std::int64_t{row} * row_bytes + piece * 16 : 0), valid);
    }
  }

  // A thread for each key, of the team's first warp for the keys' and its last for the values'.
  // Zeros for keys that nobody sees, as for their codes.
  __device__ __forceinline__ void copy_scales() {
    float* to = step_scales(filling_scales_);
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) {
      const int key = i * kWarp + lane_of_warp();
      const uint32_t row = this->row(i);
      const bool valid = row != kNoRow;
      const std::int64_t from = valid ? scale_index(a_.pages.format, row, kv_head_) : 0;
      if (place_in_team() == 0) copy_async4(to + key, a_.pages.k_scales + from, valid);
      if (place_in_team() == S::kTeam - 1) {
        copy_async4(to + S::kStepKeys + key, a_.pages.v_scales + from, valid);
      }
    }
  }

  // All threads of the block bring their share, each when its own ring comes to the span.
  __device__ __forceinline__ void copy_queries() {
    const Unit& unit = units()[found_];
    const uint32_t queries =
        shared_address(shared_ + plan_.shared.queries) + query_offset(found_query_);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < plan_.used_columns() * S::kQueryPieces;
         i += S::kThreads) {
      const int column = i / S::kQueryPieces, piece = i % S::kQueryPieces;
      const int row = column / plan_.heads_per_unit, head = column % plan_.heads_per_unit;
      const bool valid =
          row < unit.num_rows && head < unit.num_heads && piece * 8 < a_.pages.head_dim;
      const std::int64_t query =
          std::int64_t{unit.first_row + row} * a_.num_heads + unit.first_head + head;
      copy_async16(
          RowPieces(queries, S::kQueryBytes, column, piece).first,
          static_cast<const bf16*>(a_.q) + (valid ? query * a_.pages.head_dim + piece * 8 : 0),
          valid);
    }
  }

  // One more step. Its page table entries are on their way until its keys are copied.
  __device__ __forceinline__ void look_ahead() {
    starts_span_ = false;
    if (!done_) {
      round_ += S::kRoundKeys;
      if (round_ >= end_) {
        next_span();
        starts_span_ = !done_;
      }
    }
    const int first = round_ + strand_of_warp() * S::kStepKeys;
    copies_ = !done_ && first < end_;
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) {
      const int index = first + i * kWarp + lane_of_warp() % S::kStepKeys;
      in_page_[i] = kNoRow;
      if (!copies_ || index < a_.first_index || index >= end_) continue;
      const int page = quotient(index, a_.batch.page_tokens);
      in_page_[i] = static_cast<uint32_t>(index - page * a_.batch.page_tokens);
      page_[i] = static_cast<uint32_t>(
          __ldg(a_.batch.page_table + std::int64_t{slot_} * a_.batch.pages_per_sequence + page));
    }
  }

  // Items of one length lie beside each other, the longest first. Every other turn goes through the
  // blocks backwards: who has taken the longest of one turn takes the shortest of the next.
  __device__ __forceinline__ int next_item() {
    const auto blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    const int place = turns_ % 2 == 0 ? block : blocks - 1 - block;
    return turns_++ * blocks + place;
  }

  __device__ void next_span() {
    Unit unit;
    if (spans_left_ > 0) {
      --spans_left_;
      unit = units()[found_];
      ++unit.span;
    } else {
      done_ = !walk_.find(a_, plan_, next_item(), unit);
      if (done_) unit.num_rows = 0;
      spans_left_ = unit.shared() || done_ ? 0 : unit.num_spans - 1;
      slot_ = unit.slot;
      kv_head_ = unit.kv_head;
    }
    found_ = next_place(found_, unit_places(plan_.slots));
    found_query_ = next_place(found_query_, query_places(plan_.slots));
    __syncwarp();
    if (lane_of_warp() == 0) units()[found_] = unit;
    __syncwarp();
    round_ = unit.first_key();
    end_ = unit.end();
  }

  const ops::PagedAttentionArgs& a_;
  const GeneratedPlan& plan_;
  char* shared_;
  // What is looked ahead to.
  Walk walk_;
  int turns_ = 0;       // items taken so far
  bool done_ = false;   // there is none
  int spans_left_ = 0;  // of a unit that is not shared
  int slot_ = 0, kv_head_ = 0;
  int round_ = 0, end_ = 0;  // first key of the strands' steps, and end of their span
  bool starts_span_ = false;
  bool copies_ = false;  // this strand has a step
  uint32_t page_[kLaneKeys] = {}, in_page_[kLaneKeys];
  bool fills_values_ = false;
  // Places in rings. The first span found is number 0.
  int found_ = -1, found_query_ = -1;
  int filling_ = 0, filling_scales_ = 0;
  int filled_ = 0;  // all of them, once
  // What is worked on.
  int unit_ = 0, unit_query_ = 0;
  int held_ = -1;
  int scales_ = 0;
};

}  // namespace tandem::cuda
