// Linears of few rows at the bandwidth of the weights. The grid has one block a processor, which
// owns an equal share of the outputs and sweeps over K: two warps start copies of 128 bytes of each
// of its weight rows, and of x for the same columns, into a ring in shared memory; the others
// multiply 16 outputs each. No warp waits for loads of its own, and far more bytes are under way
// than a processor's share of an H200's bandwidth takes at a latency of a microsecond (35 KB).
//
// Weights depend on no kernel and on no linear before. A kernel computes a chain of linears, with
// the norms and gates between them, and the ring goes on filling with the next one's weights while
// the last tiles of this one are multiplied, written and normed, until it is full: at a gate that
// all blocks pass together (device/grid_gate.cuh) memory pauses only after that. A block also fills
// its ring as soon as it can start, which is while the kernel before, or those that one waits for,
// are still running.
//
// The order of summation is linear_order()'s, in the instructions of linear_narrow.cu. Strands are
// worked on by turns: with two turns the even strands belong to one warp of a tile, the odd ones to
// another, and stages of two strands alternate in the ring. Their sums are added in order
// nevertheless: a warp may add its strand once the warp before has passed the tile on to it.
#include "kernels/cuda/device/grid_gate.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/linear_stream_tile.cuh"
#include "kernels/cuda/tensor_map.h"

namespace tandem::cuda {
namespace stream {
namespace {

// What a warp that multiplies needs of a link.
struct Work {
  const Args& args;
  const Link& link;
  const Ring& ring;
  Barrier* passed;  // of the link
  RingPlace place;  // where its stages begin
};

// One warp: a tile's strands of one turn.
template <WeightFormat kFormat, int kRowTiles>
__device__ __forceinline__ void consume(const Work& work, int tile, int turn) {
  using S = Shape<kFormat, kRowTiles>;
  using Weight = typename S::Weight;
  const Ring& ring = work.ring;
  const RingPlan& ring_plan = work.args.ring;
  const StreamPlan& plan = work.link.plan;
  const int sweeps = plan.sweeps, turns = plan.turns;
  const int chunks = plan.chunks, stage_chunks = plan.stage_chunks;
  const int chunk_bytes = plan.chunk_rows * kTileRowBytes;
  const int stage_bytes = ring_plan.stage_bytes;
  const Strand* table = ring.strands + plan.first_strand;
  const int strands = work.link.order.num_strands();
  // A stage is free again when max_tiles have read it.
  const int readers = tile == 0 ? ring_plan.max_tiles - plan.tiles + 1 : 1;
  const bool is_first_lane = threadIdx.x % kWarp == 0;
  const Lane<S, kRowTiles> lane(plan, tile);
  const SumTree<kRowTiles> tree(ring, work.link, tile);
  Barrier* passed = work.passed + tile * turns;
  // The first turn finds the tile free before anybody has passed it on.
  uint32_t passed_phase = turn == 0 ? 1 : 0;
  RingPlace place = work.place;
  place.advance(turn);
  for (int sweep = 0; sweep < sweeps; ++sweep) {
    RowScales<S, kFormat> scales;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scales.set_row(work.link, OutputRow(work.link, sweep, lane.row(half)), half);
    }
    auto ahead = scales.load(table[turn], lane.t());
    // Two registers, which FP4 lacks: it divides.
    auto tree_place = tree.place_of(turn);
    for (int first_strand = 0; first_strand < strands; first_strand += turns) {
      const Strand strand = table[first_strand + turn];
      auto now = scales.converted(ahead);
      ahead = scales.load(table[first_strand + turns + turn], lane.t());
      TileSums<kRowTiles> sums;
      int of_stage = 0;  // chunk
      // A loop of few instructions: unrolled, they would not stay where they are fetched from fast.
#pragma unroll 1
      for (int c = 0; c < chunks; ++c) {
        const int column = strand.begin + c * S::kChunk;
        const bool has_first = column < strand.end;
        const bool has_second = column + S::kStep < strand.end;
        if (of_stage == 0) ring.filled[place.stage].wait(place.phase);
        const char* begin = ring.stages + place.stage * stage_bytes;
        const char* chunk = begin + of_stage * chunk_bytes;
        const char* x = begin + of_stage * (S::kXTiles * S::kXTileBytes);
        if constexpr (S::kHasColumnScales) {
          if (has_second) {  // a scale's columns are whole
            const float column_scales[2] = {scales.value(now, c, 0), scales.value(now, c, 1)};
            TileSums<kRowTiles> part;
            multiply_step<S, kRowTiles>(lane, chunk, x, 0, 0, 0, part);
            multiply_step<S, kRowTiles>(lane, chunk, x, 1, 0, 0, part);
#pragma unroll
            for (int i = 0; i < kRowTiles * 4; ++i) {
              sums.of[i / 4][i % 4] =
                  fmaf(part.of[i / 4][i % 4], column_scales[i % 4 / 2], sums.of[i / 4][i % 4]);
            }
          }
        } else {
          const auto scale = [&](int step, int half) -> uint32_t {
            if constexpr (S::kIsNibble) return now.bits[step][half];
            return 0;
          };
          if (has_second) {  // as a rule: the loads of both steps are under way together
            multiply_step<S, kRowTiles>(lane, chunk, x, 0, scale(0, 0), scale(0, 1), sums);
            multiply_step<S, kRowTiles>(lane, chunk, x, 1, scale(1, 0), scale(1, 1), sums);
          } else if (has_first) {
            multiply_step<S, kRowTiles>(lane, chunk, x, 0, scale(0, 0), scale(0, 1), sums);
          }
        }
        now.next_chunk();
        if (++of_stage < stage_chunks && c + 1 < chunks) continue;
        of_stage = 0;
        __syncwarp();
        if (is_first_lane) ring.read[place.stage].arrive(readers);
        place.advance(turns);
      }
      if constexpr (kFormat != WeightFormat::kBf16 && !S::kHasColumnScales) {
#pragma unroll
        for (int i = 0; i < kRowTiles * 4; ++i) {
          sums.of[i / 4][i % 4] =
              sums.of[i / 4][i % 4] * Weight::kSumFactor * scales.factor(i % 4 / 2);
        }
      }
      if (turns > 1) passed[turn].wait(passed_phase);
      passed_phase ^= 1;
      if constexpr (S::kIsNibble) tree_place = tree.place_of(first_strand + turn);
      if (first_strand + turn < strands && tree.add(tree_place, sums)) {
        write_tile(work.link, work.args.num_rows, lane, sweep, sums);
      }
      if (turns > 1) {
        __syncwarp();
        if (is_first_lane) passed[turn + 1 == turns ? 0 : turn + 1].arrive();
      }
      if constexpr (!S::kIsNibble) tree.advance(tree_place, turns);
    }
  }
}

template <bool kCodes, int kRowTiles>
__device__ __forceinline__ void consume_link(const Work& work, int warp) {
  const StreamPlan& plan = work.link.plan;
  if (warp >= plan.multiplying_warps()) return;
  const int tile = warp % plan.tiles, turn = warp / plan.tiles;
  if constexpr (!kCodes) {
    consume<WeightFormat::kBf16, kRowTiles>(work, tile, turn);
  } else {
    switch (work.link.outputs[0].weight.format) {
      case WeightFormat::kFp8Block:
        return consume<WeightFormat::kFp8Block, kRowTiles>(work, tile, turn);
      case WeightFormat::kFp8Tensor:
        return consume<WeightFormat::kFp8Tensor, kRowTiles>(work, tile, turn);
      case WeightFormat::kFp8Channel:
        return consume<WeightFormat::kFp8Channel, kRowTiles>(work, tile, turn);
      case WeightFormat::kNvfp4:
        return consume<WeightFormat::kNvfp4, kRowTiles>(work, tile, turn);
      case WeightFormat::kMxfp4:
        return consume<WeightFormat::kMxfp4, kRowTiles>(work, tile, turn);
      case WeightFormat::kInt8Channel:
        return consume<WeightFormat::kInt8Channel, kRowTiles>(work, tile, turn);
      case WeightFormat::kInt8Group:
        return consume<WeightFormat::kInt8Group, kRowTiles>(work, tile, turn);
      default:
        return consume<WeightFormat::kBf16, kRowTiles>(work, tile, turn);
    }
  }
}

static_assert(kNormWarps <= kStreamWarps && kNormWarps <= kStreamCodeWarps);

// The warps that multiply, all of them.
class Team {
 public:
  __device__ explicit Team(const Args& args)
      : args_(args), threads_(args.ring.warps * kWarp), is_first_(threadIdx.x == 0) {}

  __device__ __forceinline__ void sync() const {
    asm volatile("bar.sync 1, %0;" ::"r"(threads_) : "memory");
  }

  // What they have written can be read by the block, and by whoever learns of it from here.
  __device__ __forceinline__ void finish_writing() const {
    publish_to_copies();
    sync();
  }

  // y of the rows that the block has the gates of.
  __device__ __forceinline__ void silu_own_outputs(const Link& link) const {
    const int outs = link.plan.sweeps * link.plan.box_rows[0];
    const int first = static_cast<int>(blockIdx.x) * outs;
    const int count = min(outs, link.silu.width - first);
    for (int i = static_cast<int>(threadIdx.x); i < count * args_.num_rows; i += threads_) {
      const int row = i / count;
      const std::int64_t at = std::int64_t{row} * link.silu.width + first + (i - row * count);
      const float gate = load_float(static_cast<const bf16*>(link.silu.gate) + at);
      const float up = load_float(static_cast<const bf16*>(link.silu.up) + at);
      store_float(silu(gate) * up, static_cast<bf16*>(link.silu.y) + at);
    }
  }

  // Returns, to the first thread, when the link's x is there; the others may go ahead. A row is
  // normed by one block.
  __device__ __forceinline__ void make_inputs(const Link& link, const Ring& ring,
                                              bool is_first_link) {
    uint32_t written = 0;
    if (is_first_ && !is_first_link) written = arrive_at_gate(args_.output_gate);
    if (!link.has_norm) {
      if (is_first_) pass_gate(args_.output_gate, written);
    } else {
      // The first blocks are those that start first.
      const int first_row = static_cast<int>(blockIdx.x);
      if (first_row < link.norm.num_rows) norm_rows(link, ring, first_row, written, is_first_link);
      if (is_first_) {
        if (is_first_link) wait_for_previous_kernel();
        pass_gate(args_.norm_gate, arrive_at_gate(args_.norm_gate));
      }
    }
    if (is_first_) ring.inputs->arrive();
  }

 private:
  __device__ __forceinline__ void norm_rows(const Link& link, const Ring& ring, int first_row,
                                            uint32_t written, bool is_first_link) const {
    const ops::ResidualRmsNormArgs a = link.norm;
    const bool takes_part = threadIdx.x < kNormThreads;
    HeldGroups held;
    if (takes_part) held = held_weight<true>(a.weight, a.width);
    if (is_first_link) {
      wait_for_previous_kernel();
    } else {
      if (is_first_) pass_gate(args_.output_gate, written);
      sync();
    }
    for (int row = first_row; row < a.num_rows; row += static_cast<int>(gridDim.x)) {
      if (takes_part) {
        residual_norm_row<true, bf16>(a, row, held, ring.norm_sums, [] {
          asm volatile("bar.sync 2, %0;" ::"n"(kNormThreads) : "memory");
        });
      }
      finish_writing();
    }
  }

  const Args& args_;
  int threads_;
  bool is_first_;
};

template <bool kCodes, int kRowTiles>
__device__ __forceinline__ void run_consumer(const Args& args, const Ring& ring) {
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  Team team(args);
  int stages = 0;
  for (int i = 0; i < args.num_links; ++i) {
    const Link& link = ring.links[i];
    if (link.has_norm || link.follows) team.make_inputs(link, ring, i == 0);
    const Work work{.args = args,
                    .link = link,
                    .ring = ring,
                    .passed = ring.passed + i * args.ring.warps,
                    .place = RingPlace(args.ring, stages)};
    consume_link<kCodes, kRowTiles>(work, warp);
    stages += link.plan.num_stages(link.order.num_strands());
    if (i + 1 == args.num_links && !link.has_silu) return;
    team.finish_writing();
    if (!link.has_silu) continue;
    team.silu_own_outputs(link);
    team.finish_writing();
  }
}

// By one warp.
__device__ __forceinline__ void init_barriers(const Args& args, const Ring& ring) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  if (lane < args.ring.stages) {
    ring.filled[lane].init(1);
    ring.read[lane].init(args.ring.max_tiles);
  }
  for (int i = lane; i < args.num_links * args.ring.warps; i += kWarp) ring.passed[i].init(1);
  if (lane == 0) ring.inputs->init(1);
  publish_barriers();
  publish_stores();
}

template <bool kCodes, int kRowTiles>
__global__ void __launch_bounds__(((kCodes ? kStreamCodeWarps : kStreamWarps) + kStreamProducers) *
                                      kWarp,
                                  1) linear_stream_kernel(const __grid_constant__ Args args) {
  allow_next_kernel();
  extern __shared__ char shared[];
  const Ring ring(shared, args);
  const RingPlan& plan = args.ring;
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  if (warp >= plan.warps) {
    Producer producer(args, ring, warp - plan.warps);
    if (warp == plan.warps) init_barriers(args, ring);
    producer.prefetch_maps();
    copy_links(args, ring);
    __syncthreads();
    producer.begin();
    __syncthreads();  // the others have made the table of strands
    return producer.run();
  }
  copy_links(args, ring);
  __syncthreads();  // the links are there, and barriers can be used
  for (int i = 0; i < args.num_links; ++i) {
    const Link& link = ring.links[i];
    const int strands = link.order.num_strands() + kStreamSpareStrands;
    for (int s = static_cast<int>(threadIdx.x); s < strands; s += plan.warps * kWarp) {
      ring.strands[link.plan.first_strand + s] = strand_of(link.order, s);
    }
  }
  __syncthreads();  // the table is there
  run_consumer<kCodes, kRowTiles>(args, ring);
}

template <bool kCodes>
void run_rows(const CudaBackend& backend, const Args& args) {
  const auto grid = static_cast<unsigned>(backend.limits().num_processors);
  const auto threads = static_cast<unsigned>(args.ring.threads());
  if (args.ring.row_tiles == 1) {
    launch_overlapping(backend, linear_stream_kernel<kCodes, 1>, grid, threads,
                       args.ring.shared_bytes, args);
  } else {
    launch_overlapping(backend, linear_stream_kernel<kCodes, 2>, grid, threads,
                       args.ring.shared_bytes, args);
  }
}

Link make_link(const LinearChain::Link& from, const StreamPlan& plan, int row_tiles,
               LinkMaps& maps) {
  const ops::LinearArgs& first = from.group[0];
  const std::int64_t columns = first.weight.in_features;
  Link link{};
  link.num_outputs = static_cast<int>(from.count);
  link.order = from.order;
  link.plan = plan;
  link.follows = from.follows;
  maps.x =
      tiles_map(first.x, first.num_rows, columns, first.num_rows > 1 ? first.x_stride : columns,
                row_tiles * kLinearTileRows, plan.stage_chunks * plan.chunk_columns / kTileColumns);
  for (std::size_t i = 0; i < from.count; ++i) {
    const ops::LinearWeight& w = from.group[i].weight;
    const std::int64_t units = columns * kTileColumns / plan.chunk_columns;  // of two bytes
    maps.weights[i] =
        tile_map(w.data, w.out_features, units, units, plan.box_rows[i], kTileColumns);
    link.outputs[i] = {w, from.group[i].y, from.group[i].y_dtype, from.group[i].y_stride};
  }
  link.has_norm = from.norm.has_value();
  if (link.has_norm) link.norm = *from.norm;
  link.has_silu = from.silu.has_value();
  if (link.has_silu) link.silu = *from.silu;
  return link;
}

}  // namespace
}  // namespace stream

void linear_stream(const CudaBackend& backend, std::span<const LinearChain::Link> links,
                   const ChainPlan& plan) {
  stream::Args args{};
  args.num_links = static_cast<int>(links.size());
  args.num_rows = links.front().group[0].num_rows;
  args.ring = plan.ring;
  args.output_gate = backend.gates();
  args.norm_gate = backend.gates() + kGateWords / 2;
  for (std::size_t i = 0; i < links.size(); ++i) {
    args.links[i] = stream::make_link(links[i], plan.links[i], plan.ring.row_tiles, args.maps[i]);
  }
  if (plan.codes) return stream::run_rows<true>(backend, args);
  stream::run_rows<false>(backend, args);
}

}  // namespace tandem::cuda
