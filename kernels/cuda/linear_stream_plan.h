// How a linear of few rows is streamed (linear_stream.cu): which linears, and how their outputs are
// spread over blocks and a block's shared memory over a ring. None of it shows in a bit: sums
// follow linear_order(). Plain host code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/linear_plan.h"

namespace tandem::cuda {

inline constexpr int kStreamMaxRows = 16;   // of x
inline constexpr int kStreamMaxWarps = 18;  // that multiply; one more starts the copies
inline constexpr int kStreamMaxTiles = 9;   // of 16 outputs that a block works on at once

// Strands that the table in shared memory has room for beyond the last, none of which exists.
inline constexpr int kStreamSpareStrands = 8;

// Of a weight row in a chunk: 128 bytes, what four lanes load in two steps.
constexpr int stream_chunk_columns(ops::WeightFormat format) { return 8 * lane_columns(format); }

struct StreamPlan {
  int grid = 0;
  int sweeps = 1;  // over K, each for another part of a block's outputs
  // Of each linear: its outputs in a sweep, a box of the copy engine; where they lie in a stage.
  int box_rows[ops::kMaxLinearGroup] = {};
  int first_row[ops::kMaxLinearGroup] = {};
  int chunk_rows = 0;  // of weights, with the gaps between boxes
  int chunks = 1;      // of a strand, but for leaves' last
  int stage_chunks = 1;
  int tiles = 0;      // of 16 rows
  int row_tiles = 1;  // of 8 rows of x
  int turns = 1;      // strands that are worked on at once, by as many warps for each tile
  int stages = 0;     // whole turns
  int stage_bytes = 0;
  int sum_levels = 1;  // of the tree of leaves, in shared memory
  std::size_t shared_bytes = 0;

  constexpr int strand_stages() const { return (chunks + stage_chunks - 1) / stage_chunks; }
  constexpr int multiplying_warps() const { return tiles * turns; }
  constexpr int threads() const { return 32 * (multiplying_warps() + 1); }
};

// Whether x and the weight can be streamed at all: alignment for the copy engine, leaves of whole
// steps.
bool stream_serves(const LinearOrder& order, const ops::LinearArgs& args);

// For linears of the same x, format and order. A block gets at most shared_limit_bytes.
StreamPlan plan_stream(const LinearOrder& order, std::span<const ops::LinearArgs> group,
                       int num_processors, std::size_t shared_limit_bytes);

}  // namespace tandem::cuda
