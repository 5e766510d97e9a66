// What the producers and consumers of linear_prompt.cuh agree on: a block's shared memory, the ring
// of its stages, and the order of tiles and stages.
#pragma once

#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/linear_prompt_plan.h"

namespace tandem::cuda::prompt {

using ops::WeightFormat;

constexpr int kRows = kPromptRows;  // of a tile
constexpr int kGroupRows = 64;      // of a consumer warpgroup
constexpr int kGroupThreads = 128;
constexpr int kConsumers = kRows / kGroupRows;
constexpr int kConsumerThreads = kConsumers * kGroupThreads;
constexpr int kThreads = kGroupThreads + kConsumerThreads;
constexpr std::size_t kHopperSharedBytes = 227 * 1024;

// What a tile's width leaves room for. Sums of subtrees that wait for their sibling lie in
// registers as far as these reach, then in shared memory: three levels serve eight leaves.
template <WeightFormat kFormat, int kOuts>
struct Tile {
  static constexpr bool kPromotes = has_column_scales(kFormat);
  // Scales of groups of columns for every output are too many for registers: stages bring them.
  static constexpr bool kHasStageScales = kFormat == WeightFormat::kInt8Group;
  static constexpr int kSums = kGroupRows * kOuts / kGroupThreads;  // of a thread
  static constexpr int kLevels = prompt_tree_levels(kOuts);
  static constexpr int kRegisterLevels = kOuts == 64 ? 3 : kOuts == 128 ? (kPromotes ? 1 : 2) : 0;
  static constexpr int kSharedLevels = kLevels - kRegisterLevels;
  static constexpr int kStages = kOuts == 256 ? 4 : kOuts == 128 && kPromotes ? 3 : 5;

  static constexpr int kXBytes = kRows * kTileRowBytes;
  static constexpr int kStageBytes = kXBytes + kOuts * kTileRowBytes;
  static constexpr int kWaitingBytes = kSharedLevels * kSums * kConsumerThreads * 4;
  // Each thread that decodes brings one scale: of an output, and of so many of the stage's columns.
  static constexpr int kScaledColumns = kTileColumns * kOuts / kGroupThreads;
  static constexpr int kScaleBytes = kHasStageScales ? kStages * kGroupThreads * 4 : 0;
  static constexpr std::size_t kSharedBytes = kTileAlignment + kStages * kStageBytes +
                                              kWaitingBytes + kScaleBytes +
                                              2 * kStages * sizeof(Barrier);
  static_assert(kSharedBytes <= kHopperSharedBytes);

  // What makes a stage complete, beside the bytes that are copied: who announces them, and whoever
  // decodes.
  static constexpr int kProducers = kFormat == WeightFormat::kBf16 ? 1 : 1 + kGroupThreads;
  // A warpgroup that only starts copies needs few registers, one that decodes some more.
  static constexpr int kProducerRegisters = kFormat == WeightFormat::kBf16 ? 40 : 72;
  static constexpr int kConsumerRegisters = kFormat == WeightFormat::kBf16 ? 232 : 216;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= 3 * 168);
};

// The block's shared memory.
template <class Tile>
struct Shared {
  char* stages;     // [kStages][kStageBytes]: x, then the weight
  float* waiting;   // [kSharedLevels][kSums][kConsumerThreads]
  float* scales;    // [kStages][kTileColumns / kScaledColumns][kOuts], where they have scales
  Barrier* filled;  // [kStages]
  Barrier* read;    // [kStages]

  __device__ explicit Shared(char* memory) {
    const uint32_t address = shared_address(memory);
    stages = memory + ((address + kTileAlignment - 1) / kTileAlignment * kTileAlignment - address);
    waiting = reinterpret_cast<float*>(stages + Tile::kStages * Tile::kStageBytes);
    scales = waiting + Tile::kWaitingBytes / 4;
    filled = reinterpret_cast<Barrier*>(reinterpret_cast<char*>(scales) + Tile::kScaleBytes);
    read = filled + Tile::kStages;
  }
  __device__ char* x(int stage) const { return stages + stage * Tile::kStageBytes; }
  __device__ char* w(int stage) const { return x(stage) + Tile::kXBytes; }
  __device__ float* scales_of(int stage) const { return scales + stage * kGroupThreads; }
};

// Of output `out` from `column` on, where scales have areas.
__device__ __forceinline__ std::int64_t first_scale(const ops::LinearWeight& w, int out,
                                                    int column) {
  const std::int64_t per_row = (w.in_features + w.block_cols - 1) / w.block_cols;
  return out / w.block_rows * per_row + column / w.block_cols;
}

// A place in the ring of stages, and the parity of the round.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t round = 0;

  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, round ^= 1;
  }
};

// The tiles of a product. Row tiles vary fastest: those that share a weight's columns run together
// and find them in the second-level cache.
struct Tiles {
  int row_tiles, count;

  __device__ Tiles(const ops::LinearArgs& a, int outs)
      : row_tiles((a.num_rows + kRows - 1) / kRows),
        count(row_tiles * static_cast<int>((a.weight.out_features + outs - 1) / outs)) {}
  __device__ int first_row(int tile) const { return tile % row_tiles * kRows; }
  __device__ int first_out(int tile, int outs) const { return tile / row_tiles * outs; }
};

// The stages of this block's tiles in the order in which they are filled and read. A leaf's last
// may hold less than 64 columns of it: what follows there is not multiplied.
template <int kOuts>
struct Blocks {
  Tiles tiles;
  int leaves, leaf_columns;
  int tile, leaf = 0, begin = 0, leaf_end;  // begin: a column

  __device__ Blocks(const ops::LinearArgs& a, const LinearOrder& order)
      : tiles(a, kOuts),
        leaves(order.num_leaves),
        leaf_columns(static_cast<int>(order.leaf_columns)),
        tile(static_cast<int>(blockIdx.x)),
        leaf_end(leaf_columns) {}
  __device__ bool done() const { return tile >= tiles.count; }
  __device__ int first_row() const { return tiles.first_row(tile); }
  __device__ int first_out() const { return tiles.first_out(tile, kOuts); }
  __device__ __forceinline__ void next() {
    begin += kTileColumns;
    if (begin < leaf_end) return;
    begin = leaf_end;
    leaf_end += leaf_columns;
    if (++leaf < leaves) return;
    leaf = begin = 0;
    leaf_end = leaf_columns;
    tile += static_cast<int>(gridDim.x);
  }
};

}  // namespace tandem::cuda::prompt
