// What flows into a block of linear_stream.cu, and how: the chain it works on, its shared memory,
// the order in which stages are filled and used, and the warps that fill them.
#pragma once

#include "kernels/cuda/device/copy_engine.cuh"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/device/grid_gate.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/weights.cuh"
#include "kernels/cuda/linear_stream_plan.h"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/rms_norm.h"

namespace tandem::cuda::stream {

using ops::WeightFormat;

struct Output {
  ops::LinearWeight weight;
  void* y;
  DType y_dtype;
  std::int64_t y_stride;
};

// Some linears of the same x, and what is done before and after.
struct alignas(16) Link {
  Output outputs[ops::kMaxLinearGroup];
  int num_outputs;
  LinearOrder order;
  StreamPlan plan;
  const float* row_factors;  // [num_rows], of x; or nullptr
  int factor_link;           // the norm of which link they come from; -1: of none of the chain
  int factor_round;          // the norms before that
  int factor_strand;         // of the first sweep, before which a warp fetches them; or -1
  bool follows;              // x may be what the link before has written
  bool has_silu;             // of the first two outputs, which have as many rows
  bool has_norm;             // x is what `norm` makes, which leaves its rows' factors
  bool is_folded;            // by the link before: its one output is the norm's delta
  ops::ResidualRmsNormArgs norm;
  ops::SiluMulArgs silu;

  __device__ bool awaits_inputs() const { return has_norm || follows; }
  // Whether this block has a part of it.
  __device__ bool works() const { return plan.works(static_cast<int>(blockIdx.x)); }
};

struct LinkMaps {
  CUtensorMap x;
  CUtensorMap weights[ops::kMaxLinearGroup];
};

struct Args {
  int num_links;
  int num_rows;
  RingPlan ring;
  uint32_t* input_gate;   // everybody has written what a link reads
  uint32_t* factor_gate;  // and a norm's factors
  Link links[kChainMaxLinks];
  LinkMaps maps[kChainMaxLinks];
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
  char* stages;             // [stages][stage_bytes]: weights [chunks][chunk_rows][128], tiles of x
  float* sums;              // [levels][tiles][row tiles][4][lanes]
  float* factors;           // [warps][kStreamMaxRows]: row_factors, each warp's copy
  float* norm_sums;         // of the warps that find a row's factor
  Barrier* filled;          // [stages]
  Barrier* read;            // [stages], by max_tiles
  Barrier* passed;          // [links][tiles][turns]: the tile's sums are this turn's to add to
  Barrier* arrived;         // [links]: the block has come to the gate before x
  Barrier* inputs;          // [links]: all blocks have, x can be read
  uint32_t* input_tickets;  // [links], of that gate
  uint32_t* factor_ticket;  // of the chain's first norm
  Strand* strands;          // [links][num_strands + kStreamSpareStrands]
  Link* links;              // a copy of the arguments

  __device__ Ring(char* memory, const Args& args) {
    const RingPlan& plan = args.ring;
    const uint32_t address = shared_address(memory);
    stages = memory + ((address + kTileAlignment - 1) / kTileAlignment * kTileAlignment - address);
    char* tables = stages + plan.stages * plan.stage_bytes;
    links = reinterpret_cast<Link*>(tables);
    strands = reinterpret_cast<Strand*>(links + args.num_links);
    sums = reinterpret_cast<float*>(tables + plan.table_bytes);
    factors = sums + plan.sum_floats;
    norm_sums = factors + plan.warps * kStreamMaxRows;
    filled = reinterpret_cast<Barrier*>(norm_sums + kNormWarps);
    read = filled + plan.stages;
    passed = read + plan.stages;
    arrived = passed + args.num_links * plan.warps;
    inputs = arrived + args.num_links;
    input_tickets = reinterpret_cast<uint32_t*>(inputs + args.num_links);
    factor_ticket = input_tickets + args.num_links;
  }
};

// Copies the links to shared memory, by all threads. Arguments are constant memory that is cold in
// every launch: looked up one by one where they are needed they would cost a microsecond each.
__device__ __forceinline__ void copy_links(const Args& args, const Ring& ring) {
  static_assert(sizeof(Link) % sizeof(uint4) == 0 && sizeof(Link) <= kStreamLinkBytes);
  const auto* from = reinterpret_cast<const uint4*>(args.links);
  auto* to = reinterpret_cast<uint4*>(ring.links);
  const int count = args.num_links * static_cast<int>(sizeof(Link) / sizeof(uint4));
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    uint4 v;  // as any other memory: side by side
    asm volatile("ld.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from + i));
    to[i] = v;
  }
}

// Where the ring stands: stages are used in a circle, and each time round they change phase.
struct RingPlace {
  int stages;
  int stage;
  uint32_t phase;

  // After so many stages from the start.
  __device__ RingPlace(const RingPlan& ring, int passed)
      : stages(ring.stages),
        stage(passed % stages),
        phase(static_cast<uint32_t>(passed / stages) & 1) {}
  __device__ __forceinline__ void advance(int by) {
    stage += by;
    if (stage >= stages) stage -= stages, phase ^= 1;
  }
};

// A link's stages in the order in which they are filled: of `turns` strands by turns. A strand that
// is shorter, or does not exist, leaves its stages empty.
class Walk {
 public:
  __device__ Walk(const Link& link, const RingPlace& begin)
      : at(begin),
        sweeps_(link.plan.sweeps),
        strands_(link.order.num_strands()),
        strand_stages_(link.plan.strand_stages()),
        turns_(link.plan.turns) {}

  RingPlace at;
  int sweep = 0;
  int strand_stage = 0;

  __device__ bool ended() const { return sweep >= sweeps_; }
  __device__ int strand() const { return first_strand_ + turn_; }
  __device__ __forceinline__ void next() {
    at.advance(1);
    if (++turn_ < turns_) return;
    turn_ = 0;
    if (++strand_stage < strand_stages_) return;
    strand_stage = 0;
    first_strand_ += turns_;
    if (first_strand_ < strands_) return;
    first_strand_ = 0;
    ++sweep;
  }

 private:
  int sweeps_, strands_, strand_stages_, turns_;
  int first_strand_ = 0, turn_ = 0;
};

// Fills stages of a link. One warp; its lanes start the copies of a stage side by side.
//
// Weights of chains with codes are the first to leave the second-level cache again: NVFP4 -4 %, FP8
// -1.5 % of a step. BF16, which comes as fast as memory can, comes 2 % later with that policy.
template <bool kCodes>
class Filler {
 public:
  __device__ Filler(const Link& link, const LinkMaps& maps, const Ring& ring,
                    const RingPlan& ring_plan)
      : filled_(ring.filled),
        stages_(ring.stages),
        stage_bytes_(ring_plan.stage_bytes),
        lane_(static_cast<int>(threadIdx.x % kWarp)),
        policy_(read_once_policy()),
        x_policy_(read_by_all_policy()) {
    const StreamPlan& plan = link.plan;
    const int chunk = lane_ / link.num_outputs;
    const int output = lane_ - chunk * link.num_outputs;
    box_ = plan.box_rows[output];
    row_ = (static_cast<int>(blockIdx.x) - plan.first_block) * plan.sweeps * box_;
    outs_ =
        chunk < plan.stage_chunks ? static_cast<int>(link.outputs[output].weight.out_features) : 0;
    span_ = plan.stage_chunks * plan.chunk_columns;
    column_ = chunk * plan.chunk_columns;
    unit_shift_ = 31 - __clz(plan.chunk_columns / kTileColumns);
    to_ = (chunk * plan.chunk_rows + plan.first_row[output]) * kTileRowBytes;
    x_to_ = plan.weight_bytes();
    x_bytes_ = plan.x_bytes;
    weight_map_ = &maps.weights[output];
    x_map_ = &maps.x;
  }

  __device__ __forceinline__ void fill_weights(const Walk& walk, const Strand& strand) const {
    const int first = strand.begin + walk.strand_stage * span_;
    Barrier& filled = filled_[walk.at.stage];
    if (first >= strand.end) {
      if (lane_ == 0) filled.arrive();
      return;
    }
    const int row = row_ + walk.sweep * box_;
    const int column = first + column_;
    const bool copies = column < strand.end && row < outs_;
    const auto rows = static_cast<unsigned>(copies ? box_ : 0);
    const auto bytes =
        static_cast<int>(__reduce_add_sync(kAllLanes, rows)) * kTileRowBytes + x_bytes_;
    if (lane_ == 0) filled.arrive_and_expect(bytes);
    __syncwarp();
    // Maps count in units of two bytes.
    if (!copies) return;
    char* to = stages_ + walk.at.stage * stage_bytes_ + to_;
    if constexpr (kCodes) {
      copy_tile(*weight_map_, column >> unit_shift_, row, to, filled, policy_);
    } else {
      copy_tile(*weight_map_, column >> unit_shift_, row, to, filled);
    }
  }

  __device__ __forceinline__ void fill_x(const Walk& walk, const Strand& strand) const {
    const int first = strand.begin + walk.strand_stage * span_;
    if (lane_ != kXLane || first >= strand.end) return;
    copy_tiles(*x_map_, first / kTileColumns, stages_ + walk.at.stage * stage_bytes_ + x_to_,
               filled_[walk.at.stage], x_policy_);
  }

 private:
  static constexpr int kXLane = kWarp - 1;

  Barrier* filled_;
  char* stages_;
  int stage_bytes_;
  int lane_;
  uint64_t policy_, x_policy_;
  // What this lane copies of a stage: a chunk of an output.
  int box_, row_, outs_;  // outs_ is 0 for a chunk beyond the stage's
  int span_, column_;     // of a stage; of the chunk, within it
  int unit_shift_;
  int to_, x_to_;  // bytes of a stage
  int x_bytes_;
  const CUtensorMap* weight_map_;
  const CUtensorMap* x_map_;
};

// A warp that fills the ring: every so many stages are its own.
template <bool kCodes>
class Producer {
 public:
  __device__ Producer(const Args& args, const Ring& ring, int number)
      : args_(args),
        ring_(ring),
        others_(args.ring.producers - 1),
        number_(number),
        end_(args.ring, 0) {}

  // Maps are looked up in memory, too.
  __device__ __forceinline__ void prefetch_maps() const {
    for (int i = 0; i < args_.num_links; ++i) {
      if (threadIdx.x % kWarp <= ops::kMaxLinearGroup) {
        prefetch_map((&args_.maps[i].x)[threadIdx.x % kWarp]);
      }
    }
  }

  // As much of the first link's weights as the ring takes: they do not depend on the kernel before.
  // The table of strands is not there yet.
  __device__ __forceinline__ void begin() {
    const Link& link = ring_.links[0];
    if (!link.works()) return;
    begin_link(Walk(link, end_), Filler<kCodes>(link, args_.maps[0], ring_, args_.ring), false,
               [&](int strand) { return strand_of(link.order, strand); });
  }

  // Everything else, once the table is there.
  __device__ __forceinline__ void run() {
    for (int i = 0; i < args_.num_links; ++i) {
      const Link& link = ring_.links[i];
      const Strand* strands = ring_.strands + link.plan.first_strand;
      const Filler<kCodes> filler(link, args_.maps[i], ring_, args_.ring);
      Walk walk(link, end_);
      // Weights wait for nothing: the next link's fill what has been read of this one's. So does
      // the x of a link beside the one before.
      const bool has_x = i > 0 && !link.awaits_inputs();
      if (i > 0 && link.works())
        begin_link(walk, filler, has_x, [&](int strand) { return strands[strand]; });
      if (i == 0) wait_for_previous_kernel();
      if (link.awaits_inputs()) await_inputs(i);
      publish_to_copies();
      if (!link.works()) continue;
      for (int n = 0; n < walk.at.stages && !walk.ended(); ++n, walk.next()) {
        if (!has_x && owns(walk.at)) filler.fill_x(walk, strands[walk.strand()]);
      }
      for (; !walk.ended(); walk.next()) {
        if (!owns(walk.at)) continue;
        const Strand strand = strands[walk.strand()];
        ring_.read[walk.at.stage].wait(walk.at.phase ^ 1);
        filler.fill_weights(walk, strand);
        filler.fill_x(walk, strand);
      }
      end_ = walk.at;
    }
  }

 private:
  // Passes the gate for the block. Here, because a warp that multiplies asks for its first scales
  // meanwhile, and nothing is left to fill.
  __device__ __forceinline__ void await_inputs(int link) const {
    if (number_ == 0) {
      ring_.arrived[link].wait(0);
      if (threadIdx.x % kWarp == 0) {
        pass_gate(args_.input_gate, ring_.input_tickets[link]);
        ring_.inputs[link].arrive();
      }
    }
    ring_.inputs[link].wait(0);
  }

  template <class StrandAt>
  __device__ __forceinline__ void begin_link(Walk walk, const Filler<kCodes>& filler, bool with_x,
                                             const StrandAt& strand_at) const {
    for (int n = 0; n < walk.at.stages && !walk.ended(); ++n, walk.next()) {
      if (!owns(walk.at)) continue;
      ring_.read[walk.at.stage].wait(walk.at.phase ^ 1);
      const Strand strand = strand_at(walk.strand());
      filler.fill_weights(walk, strand);
      if (with_x) filler.fill_x(walk, strand);
    }
  }

  // Always the same stages, whose barriers it therefore sees in every phase.
  __device__ __forceinline__ bool owns(const RingPlace& at) const {
    return (at.stage & others_) == number_;
  }

  const Args& args_;
  const Ring& ring_;
  int others_;  // 0 or 1
  int number_;
  RingPlace end_;  // of the links before
};

}  // namespace tandem::cuda::stream
