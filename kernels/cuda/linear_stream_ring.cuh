// What flows into a block of linear_stream.cu, and how: the block's shared memory, the order in
// which its stages are filled and used, and the warp that fills them.
#pragma once

#include "kernels/cuda/device/copy_engine.cuh"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/weights.cuh"
#include "kernels/cuda/linear_stream_plan.h"

namespace tandem::cuda::stream {

using ops::WeightFormat;

struct Output {
  ops::LinearWeight weight;
  void* y;
  DType y_dtype;
  std::int64_t y_stride;
};

struct Args {
  CUtensorMap x_map;
  CUtensorMap weight_maps[ops::kMaxLinearGroup];
  Output outputs[ops::kMaxLinearGroup];
  int num_outputs;
  int num_rows;
  LinearOrder order;
  StreamPlan plan;
};

// Scales come a strand at a time, for so many columns each.
constexpr int kScaleColumns = 128;

template <WeightFormat kFormat, int kRowTiles>
struct Shape {
  using Weight = WeightRows<kFormat>;
  static constexpr int kChunk = stream_chunk_columns(kFormat);
  static constexpr int kStep = kChunk / 2;
  static constexpr int kXTiles = kChunk / kTileColumns;
  static constexpr int kXTileBytes = kRowTiles * kLinearTileRows * kTileRowBytes;
  static constexpr bool kIsNibble = is_nibble(kFormat);
  static constexpr bool kHasColumnScales = has_column_scales(kFormat);
  static constexpr int kStrandScales = kIsNibble || kHasColumnScales ? 4 : 0;
  static constexpr int kMaxChunks = 512 / kChunk;  // of a strand
};

// A strand's columns; none if it does not exist.
struct Strand {
  int begin, end;
};

__device__ __forceinline__ Strand strand_of(const LinearOrder& order, int strand) {
  if (strand >= order.num_strands()) return {0, 0};
  const int leaf = strand / order.strands_per_leaf;
  const auto leaf_columns = static_cast<int>(order.leaf_columns);
  const auto columns = static_cast<int>(order.strand_columns);
  const int begin = leaf * leaf_columns + (strand - leaf * order.strands_per_leaf) * columns;
  return {begin, min(begin + columns, (leaf + 1) * leaf_columns)};
}

// The block's shared memory.
struct Ring {
  char* stages;     // [stages][stage_bytes]: weights [chunks][chunk_rows][128], tiles of x
  float* sums;      // [levels][tiles][row tiles][4][lanes]
  Barrier* filled;  // [stages]
  Barrier* read;    // [stages]
  Barrier* passed;  // [tiles][turns]: the tile's sums are this turn's to add to
  Strand* strands;  // [num_strands + kStreamSpareStrands]

  __device__ Ring(char* memory, const StreamPlan& plan) {
    const uint32_t address = shared_address(memory);
    stages = memory + ((address + kTileAlignment - 1) / kTileAlignment * kTileAlignment - address);
    // A last tile of eight rows reads eight more, which belong to nobody.
    char* behind = stages + plan.stages * plan.stage_bytes + kLinearTileOuts * kTileRowBytes;
    sums = reinterpret_cast<float*>(behind);
    const int floats = plan.sum_levels * plan.tiles * plan.row_tiles * 4 * kWarp;
    filled = reinterpret_cast<Barrier*>(sums + floats);
    read = filled + plan.stages;
    passed = read + plan.stages;
    strands = reinterpret_cast<Strand*>(passed + plan.multiplying_warps());
  }
};

// The stages in the order in which they are filled: of `turns` strands by turns. A strand that is
// shorter, or does not exist, leaves its stages empty.
struct Place {
  int sweep = 0, first_strand = 0, strand_stage = 0, turn = 0;
  int stage = 0;
  uint32_t phase = 0;

  __device__ __forceinline__ void next(const StreamPlan& plan, int strands) {
    if (++stage == plan.stages) stage = 0, phase ^= 1;
    if (++turn < plan.turns) return;
    turn = 0;
    if (++strand_stage < plan.strand_stages()) return;
    strand_stage = 0;
    first_strand += plan.turns;
    if (first_strand < strands) return;
    first_strand = 0;
    ++sweep;
  }
};

// Fills the ring. One warp; its lanes start the copies of a stage side by side.
template <class S>
class Producer {
 public:
  __device__ Producer(const Args& args, const Ring& ring)
      : args_(args), plan_(args.plan), ring_(ring), lane_(static_cast<int>(threadIdx.x % kWarp)) {
    chunk_ = lane_ / args.num_outputs;
    output_ = lane_ - chunk_ * args.num_outputs;
    row_ = static_cast<int>(blockIdx.x) * plan_.sweeps * plan_.box_rows[output_];
    outs_ = static_cast<int>(args.outputs[output_].weight.out_features);
    chunk_bytes_ = plan_.chunk_rows * kTileRowBytes;
    to_ = chunk_ * chunk_bytes_ + plan_.first_row[output_] * kTileRowBytes;
  }

  // The ring's first round, of weights alone: they do not depend on the kernel before.
  __device__ __forceinline__ void begin() {
    const int strands = args_.order.num_strands();
    Place at;
    for (int i = 0; i < plan_.stages && at.sweep < plan_.sweeps; ++i) {
      fill_weights(at, strand_of(args_.order, at.first_strand + at.turn));
      at.next(plan_, strands);
    }
    if (lane_ == kXLane) prefetch_map(args_.x_map);
  }

  // Everything else.
  __device__ __forceinline__ void run() {
    const int strands = args_.order.num_strands();
    Place at;
    wait_for_previous_kernel();
    for (int i = 0; i < plan_.stages && at.sweep < plan_.sweeps; ++i) {
      fill_x(at, ring_.strands[at.first_strand + at.turn]);
      at.next(plan_, strands);
    }
    for (; at.sweep < plan_.sweeps; at.next(plan_, strands)) {
      const Strand strand = ring_.strands[at.first_strand + at.turn];
      ring_.read[at.stage].wait(at.phase ^ 1);
      fill_weights(at, strand);
      fill_x(at, strand);
    }
  }

 private:
  static constexpr int kXLane = kWarp - 1;

  // What a stage holds of its strand: from here to the strand's end, or less.
  __device__ __forceinline__ int first_column(const Place& at, const Strand& strand) const {
    return strand.begin + at.strand_stage * plan_.stage_chunks * S::kChunk;
  }

  __device__ __forceinline__ void fill_weights(const Place& at, const Strand& strand) const {
    const int first = first_column(at, strand);
    Barrier& filled = ring_.filled[at.stage];
    if (first >= strand.end) {
      if (lane_ == 0) filled.arrive();
      return;
    }
    const int row = row_ + at.sweep * plan_.box_rows[output_];
    const int column = first + chunk_ * S::kChunk;
    const bool copies = chunk_ < plan_.stage_chunks && column < strand.end && row < outs_;
    const auto rows = static_cast<unsigned>(copies ? plan_.box_rows[output_] : 0);
    const auto bytes = static_cast<int>(__reduce_add_sync(kAllLanes, rows)) * kTileRowBytes +
                       plan_.stage_chunks * S::kXTiles * S::kXTileBytes;
    if (lane_ == 0) filled.arrive_and_expect(bytes);
    __syncwarp();
    // Maps count in units of two bytes.
    if (copies) {
      copy_tile(args_.weight_maps[output_], column * kTileColumns / S::kChunk, row,
                ring_.stages + at.stage * plan_.stage_bytes + to_, filled);
    }
  }

  __device__ __forceinline__ void fill_x(const Place& at, const Strand& strand) const {
    const int first = first_column(at, strand);
    if (lane_ != kXLane || first >= strand.end) return;
    copy_tiles(args_.x_map, first / kTileColumns,
               ring_.stages + at.stage * plan_.stage_bytes + plan_.stage_chunks * chunk_bytes_,
               ring_.filled[at.stage]);
  }

  const Args& args_;
  const StreamPlan& plan_;
  const Ring& ring_;
  int lane_;
  int chunk_, output_;  // what this lane copies of a stage; chunks beyond the stage's: nothing
  int row_, outs_;      // of its output
  int chunk_bytes_;
  int to_;  // byte of a stage
};

}  // namespace tandem::cuda::stream
