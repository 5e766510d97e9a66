// Linears of few rows at the bandwidth of the weights. The grid has one block a processor, which
// owns an equal share of the outputs and sweeps over K: one warp starts copies of 128 bytes of each
// of its weight rows, and of x for the same columns, into a ring in shared memory; the others
// multiply 16 outputs each. No warp waits for loads of its own, and far more bytes are under way
// than a processor's share of an H200's bandwidth takes at a latency of a microsecond (35 KB).
//
// Weights do not depend on the kernel before: a block fills its ring with them as soon as it can
// start, which is while that kernel, or those it waits for, are still running.
//
// The order of summation is linear_order()'s, in the instructions of linear_narrow.cu. Strands are
// worked on by turns: with two turns the even strands belong to one warp of a tile, the odd ones to
// another, and stages of two strands alternate in the ring. Their sums are added in order
// nevertheless: a warp may add its strand once the warp before has passed the tile on to it.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/linear_stream_tile.cuh"
#include "kernels/cuda/tensor_map.h"

namespace tandem::cuda {
namespace stream {
namespace {

// One warp: a tile's strands of one turn.
template <WeightFormat kFormat, class S, int kRowTiles>
__device__ __forceinline__ void consume(const Args& args, const Ring& ring, int tile, int turn) {
  using Weight = typename S::Weight;
  const StreamPlan& plan = args.plan;
  const LinearOrder& order = args.order;
  const int strands = order.num_strands();
  const int chunk_bytes = plan.chunk_rows * kTileRowBytes;
  const bool is_first_lane = threadIdx.x % kWarp == 0;
  const Lane<S, kRowTiles> lane(plan, tile);
  SumTree<kRowTiles> tree(ring, plan, tile);
  Barrier* passed = ring.passed + tile * plan.turns;
  // The first turn finds the tile free before anybody has passed it on.
  uint32_t passed_phase = turn == 0 ? 1 : 0;
  int stage = turn;
  uint32_t phase = 0;
  for (int sweep = 0; sweep < plan.sweeps; ++sweep) {
    RowScales<S, kFormat> scales;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scales.set_row(args, OutputRow(args, sweep, lane.row(half)), half);
    }
    auto ahead = scales.load(ring.strands[turn], lane.t());
    for (int first_strand = 0; first_strand < strands; first_strand += plan.turns) {
      const Strand strand = ring.strands[first_strand + turn];
      const auto now = ahead;
      ahead = scales.load(ring.strands[first_strand + plan.turns + turn], lane.t());
      TileSums<kRowTiles> sums;
      int of_stage = 0;  // chunk
#pragma unroll
      for (int c = 0; c < S::kMaxChunks; ++c) {
        if (c >= plan.chunks) break;
        const int column = strand.begin + c * S::kChunk;
        const bool has_first = column < strand.end;
        const bool has_second = column + S::kStep < strand.end;
        if (of_stage == 0) ring.filled[stage].wait(phase);
        const char* begin = ring.stages + stage * plan.stage_bytes;
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
            if constexpr (S::kIsNibble) return now.bits[2 * c + step][half];
            return 0;
          };
          if (has_first) {
            multiply_step<S, kRowTiles>(lane, chunk, x, 0, scale(0, 0), scale(0, 1), sums);
          }
          if (has_second) {
            multiply_step<S, kRowTiles>(lane, chunk, x, 1, scale(1, 0), scale(1, 1), sums);
          }
        }
        if (++of_stage < plan.stage_chunks && c + 1 < plan.chunks) continue;
        of_stage = 0;
        __syncwarp();
        if (is_first_lane) ring.read[stage].arrive();
        stage += plan.turns;
        if (stage >= plan.stages) stage -= plan.stages, phase ^= 1;
      }
      if constexpr (kFormat != WeightFormat::kBf16 && !S::kHasColumnScales) {
#pragma unroll
        for (int i = 0; i < kRowTiles * 4; ++i) {
          sums.of[i / 4][i % 4] =
              sums.of[i / 4][i % 4] * Weight::kSumFactor * scales.factor(i % 4 / 2);
        }
      }
      if (plan.turns > 1) passed[turn].wait(passed_phase);
      passed_phase ^= 1;
      if (first_strand + turn < strands && tree.add(order, first_strand + turn, sums)) {
        write_tile(args, lane, sweep, sums);
      }
      if (plan.turns > 1) {
        __syncwarp();
        if (is_first_lane) passed[turn + 1 == plan.turns ? 0 : turn + 1].arrive();
      }
    }
  }
}

template <WeightFormat kFormat, int kRowTiles>
__global__ void __launch_bounds__((kStreamMaxWarps + 1) * kWarp, 1)
    linear_stream_kernel(const __grid_constant__ Args args) {
  using S = Shape<kFormat, kRowTiles>;
  allow_next_kernel();
  extern __shared__ char shared[];
  const StreamPlan& plan = args.plan;
  const Ring ring(shared, plan);
  const int warp = static_cast<int>(threadIdx.x / kWarp);
  const int multiplying = plan.multiplying_warps();
  if (warp == multiplying) {
    if (threadIdx.x % kWarp == 0) {
      for (int i = 0; i < plan.stages; ++i) {
        ring.filled[i].init(1);
        ring.read[i].init(plan.tiles);
      }
      for (int i = 0; i < multiplying; ++i) ring.passed[i].init(1);
      publish_barriers();
      publish_stores();
    }
    __syncwarp();
    Producer<S> producer(args, ring);
    producer.begin();
    __syncthreads();  // the others have made the table of strands
    return producer.run();
  }
  for (int i = static_cast<int>(threadIdx.x); i < args.order.num_strands() + kStreamSpareStrands;
       i += multiplying * kWarp) {
    ring.strands[i] = strand_of(args.order, i);
  }
  __syncthreads();  // barriers can be used, and the table
  consume<kFormat, S, kRowTiles>(args, ring, warp % plan.tiles, warp / plan.tiles);
}

template <WeightFormat kFormat, int kRowTiles>
void run(const CudaBackend& backend, const Args& args) {
  launch_overlapping(backend, linear_stream_kernel<kFormat, kRowTiles>,
                     static_cast<unsigned>(args.plan.grid),
                     static_cast<unsigned>(args.plan.threads()), args.plan.shared_bytes, args);
}

template <WeightFormat kFormat>
void run_rows(const CudaBackend& backend, const Args& args) {
  if (args.plan.row_tiles == 1) return run<kFormat, 1>(backend, args);
  run<kFormat, 2>(backend, args);
}

}  // namespace
}  // namespace stream

void linear_stream(const CudaBackend& backend, std::span<const ops::LinearArgs> group,
                   const LinearOrder& order) {
  const ops::LinearArgs& first = group.front();
  stream::Args args{};
  args.num_outputs = static_cast<int>(group.size());
  args.num_rows = first.num_rows;
  args.order = order;
  args.plan = plan_stream(order, group, backend.limits().num_processors,
                          backend.limits().shared_bytes_per_block);
  const std::int64_t columns = first.weight.in_features;
  const int chunk_columns = stream_chunk_columns(first.weight.format);
  args.x_map = tiles_map(
      first.x, first.num_rows, columns, first.num_rows > 1 ? first.x_stride : columns,
      args.plan.row_tiles * kLinearTileRows, args.plan.stage_chunks * chunk_columns / kTileColumns);
  for (std::size_t i = 0; i < group.size(); ++i) {
    const ops::LinearWeight& w = group[i].weight;
    const std::int64_t units = columns * kTileColumns / chunk_columns;  // of two bytes
    args.weight_maps[i] =
        tile_map(w.data, w.out_features, units, units, args.plan.box_rows[i], kTileColumns);
    args.outputs[i] = {w, group[i].y, group[i].y_dtype, group[i].y_stride};
  }
  with_code_format(first.weight.format,
                   [&](auto format) { stream::run_rows<format()>(backend, args); });
}

}  // namespace tandem::cuda
