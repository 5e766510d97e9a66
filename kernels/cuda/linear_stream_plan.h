// How linears of few rows are streamed (linear_stream.cu): which linears, and how their outputs are
// spread over blocks and a block's shared memory over a ring. None of it shows in a bit: sums
// follow linear_order(). Plain host code.
//
// A chain is what one kernel computes: links, one after the other, each some linears of the same x.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/linear_plan.h"
#include "kernels/ops/rms_norm.h"

namespace tandem::cuda {

inline constexpr int kStreamMaxRows = 16;  // of x
inline constexpr int kStreamMaxTiles = 9;  // of 16 outputs that a block works on at once
inline constexpr int kChainMaxLinks = 6;

// Warps of a block that multiply; up to two more start the copies. Codes take instructions to
// decode, so many warps. BF16 takes none: few warps, which leave registers for the small kernels
// around.
inline constexpr int kStreamProducers = 2;
inline constexpr int kStreamWarps = 9;
inline constexpr int kStreamCodeWarps = 18;

// What a link takes of shared memory besides; the kernel checks it.
inline constexpr std::size_t kStreamLinkBytes = 592;

// Strands that a link's table in shared memory has room for beyond the last, none of which exists:
// what warps that take up to four by turns look at, those of the next turn included.
inline constexpr int kStreamMaxTurns = 4;
inline constexpr int kStreamSpareStrands = 2 * kStreamMaxTurns - 1;

// Of a weight row in a chunk: 128 bytes, what four lanes load in two steps.
constexpr int stream_chunk_columns(ops::WeightFormat format) { return 8 * lane_columns(format); }

// A link's outputs, and what a stage of the ring holds of it.
struct StreamPlan {
  // Blocks that the outputs are spread over; the others skip the link.
  int first_block = 0, num_blocks = 0;
  int sweeps = 1;  // over K, each for another part of a block's outputs
  // Of each linear: its outputs in a sweep, a box of the copy engine; where they lie in a stage.
  int box_rows[ops::kMaxLinearGroup] = {};
  int first_row[ops::kMaxLinearGroup] = {};
  int chunk_rows = 0;  // of weights, with the gaps between boxes
  int chunk_columns = 64;
  int chunks = 1;  // of a strand, but for leaves' last
  int stage_chunks = 1;
  int x_bytes = 0;       // of a stage, behind its weights
  int tiles = 0;         // of 16 rows
  int turns = 1;         // strands that are worked on at once, by as many warps for each tile
  int sum_levels = 1;    // of the tree of leaves, in shared memory
  int first_strand = 0;  // of the link, in the chain's table

  constexpr bool works(int block) const {
    return block >= first_block && block < first_block + num_blocks;
  }
  constexpr int strand_stages() const { return (chunks + stage_chunks - 1) / stage_chunks; }
  constexpr int weight_bytes() const { return stage_chunks * chunk_rows * 128; }
  constexpr int stage_bytes() const { return weight_bytes() + x_bytes; }
  constexpr int multiplying_warps() const { return tiles * turns; }
  // That pass through the ring, some of them empty.
  constexpr int num_stages(int strands) const {
    return sweeps * ((strands + turns - 1) / turns) * strand_stages() * turns;
  }
};

// What the links share.
struct RingPlan {
  int warps = 0;      // that multiply
  int producers = 1;  // warps that start the copies, 1 or 2; a whole number of stages each
  int row_tiles = 1;  // of 8 rows of x
  int stages = 0;     // whole turns of every link
  int stage_bytes = 0;
  int max_tiles = 0;  // of a link
  int sum_floats = 0;
  int num_strands = 0;  // of all links' tables
  int table_bytes = 0;  // links and strands
  std::size_t shared_bytes = 0;

  constexpr int threads() const { return 32 * (warps + producers); }
};

struct ChainPlan {
  bool codes = false;  // some link is not BF16
  RingPlan ring;
  StreamPlan links[kChainMaxLinks];
};

// Linears of the same x, format and order.
struct ChainLink {
  std::span<const ops::LinearArgs> group;
  LinearOrder order;
  bool has_norm = false;   // of x, in the chain
  bool is_beside = false;  // the link before reads the same x
};

// Whether x and the weight can be streamed at all: alignment for the copy engine, leaves of whole
// steps.
bool stream_serves(const LinearOrder& order, const ops::LinearArgs& args);

// Whether a link can fold its output into the residual stream for a norm behind it, while it writes
// it: if that is its one output and the norm's delta, and the norm writes nothing that the link
// reads, since other blocks may still be reading.
bool stream_folds(std::span<const ops::LinearArgs> group, const ops::ResidualRmsNormArgs& norm);

// For a block on every processor, of at most shared_limit_bytes. A chain of several links may have
// too few stages to stream (chain_streams() is false); a single one can always be run.
ChainPlan plan_chain(std::span<const ChainLink> links, int num_processors,
                     std::size_t shared_limit_bytes);
bool chain_streams(const ChainPlan& plan);

}  // namespace tandem::cuda
