// Linears of few rows at the bandwidth of the weights. The grid has one block a processor, which
// owns an equal share of the outputs and sweeps over K: two warps start copies of 128 bytes of each
// of its weight rows, and of x for the same columns, into a ring in shared memory; the others
// multiply 16 outputs each. No warp waits for loads of its own, and far more bytes are under way
// than a processor's share of an H200's bandwidth takes at a latency of a microsecond (35 KB).
//
// Weights depend on no kernel and on no linear before. A kernel computes a chain of linears, with
// the norms and gates between them, and the ring goes on filling with the next one's weights while
// the last tiles of this one are multiplied and written, until it is full: at a gate that
// all blocks pass together (device/grid_gate.cuh) memory pauses only after that. A block also fills
// its ring as soon as it can start, which is while the kernel before, or those that one waits for,
// are still running.
//
// A norm between two links costs no more than a gate. The first folds its outputs into the residual
// stream and multiplies them with the norm's weight as it writes them; what needs the whole row,
// its factor, is found by one block while the second link is under way, and multiplies that one's
// sums (ops/rms_norm.h).
//
// The order of summation is linear_order()'s, in the instructions of linear_narrow.cu. Strands are
// worked on by turns: with two turns the even strands belong to one warp of a tile, the odd ones to
// another, and stages of two strands alternate in the ring. Their sums are added in order
// nevertheless: a warp may add its strand once the warp before has passed the tile on to it.
#include "kernels/cuda/device/grid_gate.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/linear_stream_team.cuh"
#include "kernels/cuda/linear_stream_tile.cuh"
#include "kernels/cuda/tensor_map.h"

namespace tandem::cuda {
namespace stream {
namespace {

// Lanes that pass a tile on. One, behind a __syncwarp(), is enough, but compute-sanitizer's
// racecheck does not see that the others are behind it: a build for that lets all do it.
#ifdef TANDEM_RACECHECK
constexpr int kPassingLanes = kWarp;
#else
constexpr int kPassingLanes = 1;
#endif

// What a warp that multiplies needs of a link.
struct Work {
  const Args& args;
  int number;  // of the link
  const Link& link;
  const Ring& ring;
  RingPlace place;  // where its stages begin

  __device__ Barrier* passed() const { return ring.passed + number * args.ring.warps; }
  // The norm that this link's output is folded for, or nullptr.
  __device__ const ops::ResidualRmsNormArgs* fold() const {
    const Link* next = ring.links + number + 1;
    return number + 1 < args.num_links && next->is_folded ? &next->norm : nullptr;
  }
  // This warp's copy of the factors of x, or nullptr.
  __device__ float* factors() const {
    if (link.row_factors == nullptr) return nullptr;
    return ring.factors + threadIdx.x / kWarp * kStreamMaxRows;
  }
  // Makes it. By whole warps.
  __device__ __forceinline__ void fetch_factors() const {
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    if (link.factor_link < 0) {
      wait_for_previous_kernel();
    } else {
      ring.inputs[link.factor_link].wait(0);  // the ticket was written before
      if (lane == 0) {
        pass_gate(args.factor_gate, round_later(*ring.factor_ticket, link.factor_round));
      }
      __syncwarp();
    }
    if (lane < args.num_rows) factors()[lane] = __ldcg(link.row_factors + lane);
    __syncwarp();
  }
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
  Barrier* passed = work.passed() + tile * turns;
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
      if (first_strand == work.link.factor_strand && sweep == 0) work.fetch_factors();
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
        write_tile(work.link, work.args.num_rows, lane, sweep, sums, work.factors(), work.fold());
      }
      if (turns > 1) {
        __syncwarp();
        if (threadIdx.x % kWarp < kPassingLanes) passed[turn + 1 == turns ? 0 : turn + 1].arrive();
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

template <bool kCodes, int kRowTiles>
__device__ __forceinline__ void run_consumer(const Args& args, const Ring& ring) {
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  Team team(args);
  team.begin(ring);
  int stages = 0;
  for (int i = 0; i < args.num_links; ++i) {
    const Link& link = ring.links[i];
    if (link.awaits_inputs()) team.make_inputs(link, i, ring);
    const Work work{.args = args,
                    .number = i,
                    .link = link,
                    .ring = ring,
                    .place = RingPlace(args.ring, stages)};
    if (link.works()) {
      consume_link<kCodes, kRowTiles>(work, warp);
      stages += link.plan.num_stages(link.order.num_strands());
    }
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
  for (int i = lane; i < args.num_links * args.ring.warps; i += kWarp)
    ring.passed[i].init(kPassingLanes);
  if (lane < args.num_links) {
    ring.arrived[lane].init(1);
    ring.inputs[lane].init(1);
  }
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
    Producer<kCodes> producer(args, ring, warp - plan.warps);
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
  link.row_factors = first.row_factors;
  link.has_norm = from.norm.has_value();
  link.is_folded = from.is_folded;
  if (link.has_norm) link.norm = *from.norm;
  link.has_silu = from.silu.has_value();
  if (link.has_silu) link.silu = *from.silu;
  return link;
}

// Where links have the factors of their rows from, and when their warps fetch them. They are used
// when sums are complete; three quarters of the way they have long been there, and to wait for the
// load delays nobody. A link of the same rows finds what the same warps have fetched for the link
// before.
void place_factors(std::span<Link> links) {
  int norms = 0;
  int newest = -1;                      // link with a norm
  const StreamPlan* fetched = nullptr;  // by whose warps, of the newest
  for (int i = 0; i < static_cast<int>(links.size()); ++i) {
    Link& link = links[static_cast<std::size_t>(i)];
    const StreamPlan& plan = link.plan;
    if (link.has_norm) {
      ++norms;
      newest = i;
      fetched = nullptr;
    }
    link.factor_link = link.factor_strand = -1;
    if (link.row_factors == nullptr) continue;
    if (newest >= 0 && link.row_factors == links[static_cast<std::size_t>(newest)].row_factors) {
      link.factor_link = newest;
      link.factor_round = norms - 1;
    } else {
      fetched = nullptr;  // others take their place
    }
    if (fetched != nullptr && fetched->first_block == plan.first_block &&
        fetched->num_blocks >= plan.num_blocks &&
        fetched->multiplying_warps() >= plan.multiplying_warps()) {
      continue;
    }
    link.factor_strand = link.order.num_strands() * 3 / 4 / plan.turns * plan.turns;
    if (link.factor_link >= 0) fetched = &plan;
  }
}

}  // namespace
}  // namespace stream

void linear_stream(const CudaBackend& backend, std::span<const LinearChain::Link> links,
                   const ChainPlan& plan) {
  stream::Args args{};
  args.num_links = static_cast<int>(links.size());
  args.num_rows = links.front().group[0].num_rows;
  args.ring = plan.ring;
  args.input_gate = backend.gates();
  args.factor_gate = backend.gates() + kGateWords / 2;
  for (std::size_t i = 0; i < links.size(); ++i) {
    args.links[i] = stream::make_link(links[i], plan.links[i], plan.ring.row_tiles, args.maps[i]);
  }
  stream::place_factors({args.links, links.size()});
  if (plan.codes) return stream::run_rows<true>(backend, args);
  stream::run_rows<false>(backend, args);
}

}  // namespace tandem::cuda
