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
    const int first = (static_cast<int>(blockIdx.x) - link.plan.first_block) * outs;
    const int count = min(outs, link.silu.width - first);
    for (int i = static_cast<int>(threadIdx.x); i < count * args_.num_rows; i += threads_) {
      const int row = i / count;
      const std::int64_t at = std::int64_t{row} * link.silu.width + first + (i - row * count);
      const float gate = load_float(static_cast<const bf16*>(link.silu.gate) + at);
      const float up = load_float(static_cast<const bf16*>(link.silu.up) + at);
      store_float(silu(gate) * up, static_cast<bf16*>(link.silu.y) + at);
    }
  }

  // Makes the link's x if nobody has, and tells the producers when all blocks have; the team may go
  // ahead.
  __device__ __forceinline__ void make_inputs(const Link& link, const Ring& ring,
                                              Barrier& inputs) const {
    if (link.has_norm && !link.is_folded) {
      fold_share(link.norm);
      finish_writing();
    }
    if (is_first_) {
      pass_gate(args_.input_gate, arrive_at_gate(args_.input_gate));
      inputs.arrive();
    }
    if (link.has_norm) find_factors(link.norm, ring, inputs);
  }

 private:
  // A block those of a row. Of the last blocks, because they have the fewest outputs.
  __device__ __forceinline__ void find_factors(const ops::ResidualRmsNormArgs& a, const Ring& ring,
                                               Barrier& inputs) const {
    const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x);
    if (first_row >= a.num_rows || threadIdx.x >= kNormThreads) return;
    const auto sync = [] { asm volatile("bar.sync 2, %0;" ::"n"(kNormThreads) : "memory"); };
    inputs.wait(0);
    for (int row = first_row; row < a.num_rows; row += static_cast<int>(gridDim.x)) {
      const bf16* residual = static_cast<const bf16*>(a.residual) + std::int64_t{row} * a.width;
      const auto read = [&](int i) { return RowAccess<true>::load(residual, i, a.width); };
      HeldGroups held;
#pragma unroll
      for (int n = 0; n < kNormHeld; ++n) held.of[n] = read(held_element(n));
      const float factor = row_factor(held, a.width, a.eps, read, ring.norm_sums, sync);
      if (is_first_) a.row_factors[row] = factor;
      if (row + static_cast<int>(gridDim.x) < a.num_rows) sync();  // the sums have been read
    }
    if (is_first_) {
      const int blocks = min(a.num_rows, static_cast<int>(gridDim.x));
      arrive_at_gate(args_.factor_gate, first_row == 0, blocks);
    }
  }

  // This block's share of the elements, by the last threads: the first one has other things to do.
  // Of a chain's first link, since others have been folded.
  __device__ __forceinline__ void fold_share(const ops::ResidualRmsNormArgs& a) const {
    using Access = RowAccess<true>;
    const int row_groups = a.width / kNormGroup, groups = a.num_rows * row_groups;
    const int share = (groups + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
    const int first = static_cast<int>(blockIdx.x) * share, end = min(first + share, groups);
    const int thread = threads_ - 1 - static_cast<int>(threadIdx.x);
    for (int n = first + thread; n < end; n += threads_) {
      const std::int64_t row_begin = std::int64_t{n / row_groups} * a.width;
      const int i = n % row_groups * kNormGroup;
      const Four weight = Access::load(a.weight, i, a.width);
      wait_for_previous_kernel();
      bf16* residual = static_cast<bf16*>(a.residual) + row_begin;
      Four v = Access::load(a.delta + row_begin, i, a.width);
      if (a.update == ops::ResidualUpdate::kAdd) {
        const Four old = Access::load(residual, i, a.width);
#pragma unroll
        for (int j = 0; j < kNormGroup; ++j) v.of[j] = old.of[j] + v.of[j];
      }
      v = Access::store(v, residual, i, a.width);
#pragma unroll
      for (int j = 0; j < kNormGroup; ++j) v.of[j] = v.of[j] * (1.0f + weight.of[j]);
      Access::store(v, static_cast<bf16*>(a.y) + row_begin, i, a.width);
    }
    wait_for_previous_kernel();  // without a share, too: the gate is in use until then
  }

  const Args& args_;
  int threads_;
  bool is_first_;
};

template <bool kCodes, int kRowTiles>
__device__ __forceinline__ void run_consumer(const Args& args, const Ring& ring) {
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  Team team(args);
  if (threadIdx.x == 0) {
    wait_for_previous_kernel();
    // Nobody finds a factor before all blocks have come to the input gate of a norm.
    *ring.factor_ticket = read_gate(args.factor_gate);
  }
  int stages = 0;
  for (int i = 0; i < args.num_links; ++i) {
    const Link& link = ring.links[i];
    if (link.awaits_inputs()) team.make_inputs(link, ring, ring.inputs[i]);
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
  for (int i = lane; i < args.num_links * args.ring.warps; i += kWarp) ring.passed[i].init(1);
  if (lane < args.num_links) ring.inputs[lane].init(1);
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
