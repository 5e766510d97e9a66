// The gated delta rule in blocks of 64 rows, for prompt rows. What does not need the state has been
// prepared for all blocks at once (gated_delta_prepare.cu); here a thread block owns one head and a
// strip of value columns of one segment, and goes through the segment's blocks with the state in
// registers and a copy of it in shared memory:
//   x = v - e^c S^T k^      n = solve x      o = e^c S^T q^ + attention n
//   S <- e^{c_last} S + sum_j e^{c_last - c_j} k^_j n_j^T
// All products are fp32 on the matrix units. Columns never meet, so other columns are other thread
// blocks.
//
// A block that is cut by chunks is redone from its first row, from the raw rows that the open block
// keeps: the state has not moved, and a row depends only on rows before it, so every row comes out
// with the same bits. (Finite ones: zeros of the triangle do not hide a later row's NaN.)
#include <algorithm>

#include "kernels/cuda/device/mma_tf32.cuh"
#include "kernels/cuda/gated_delta_blocks.cuh"

namespace tandem::cuda {
namespace {

constexpr int kBlock = ops::kGdnBlock;

// Sizes of a thread block. Shared memory stays below the 99 KiB of small GPUs, except for fp32
// inputs with wide keys.
template <class T, int kKeyDims>
struct StripShape {
  static constexpr int kKeys = kKeyDims;
  static constexpr int kColumns = kKeys <= kGdnNarrowKeys ? 32 : 16;
  static constexpr int kWarpColumns = kColumns / 2;               // of a warp before the fold
  static constexpr int kWarpTiles = kWarpColumns / 8;             // ... in instructions
  static constexpr int kFoldRows = kKeys / kGdnWarps / kGdnTile;  // tiles of keys of a warp
  static constexpr int kFoldTiles = kColumns / 8;
  // Operands B: four rows of eight columns in different banks. Of the state a lane takes four
  // neighbouring rows, of the pseudo-values every fourth.
  static constexpr int kStateRow = kColumns + 2;
  static constexpr int kValueRow = kColumns + 8;
  // Where there is room, the next block's keys come while this block's are in use, and its solve
  // waits in shared memory.
  static constexpr bool kFetchesAhead = sizeof(T) == 2 && kKeys <= kGdnNarrowKeys;
  static constexpr int kKeyBuffers = kFetchesAhead ? 2 : 1;
  static constexpr int kRowsFloats = kBlock * kKeyRow<T, kKeys> * sizeof(T) / sizeof(float);
  static constexpr int kSolveFloats = kFetchesAhead ? TriangleOperand::kFloats : 0;
  static constexpr int kFloats = (kKeyBuffers + 1) * kRowsFloats + kSolveFloats +
                                 2 * PreparedBlock::kFactors + kKeys * kStateRow +
                                 kBlock * kValueRow;
};

template <class T, int kKeyDims>
class Strip {
  using Shape = StripShape<T, kKeyDims>;
  static constexpr int kKeys = Shape::kKeys;
  static constexpr bool kExact = kTf32Exact<T>;

 public:
  __device__ Strip(const ops::GatedDeltaRuleArgs& a, float* shared, const ops::Segment& segment,
                   int scratch_block)
      : a_(a),
        segment_(segment),
        scratch_block_(scratch_block),
        v_head_(static_cast<int>(blockIdx.y)),
        first_column_(static_cast<int>(blockIdx.z) * Shape::kColumns),
        head_(gdn_head(a.shape, v_head_)),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / kWarp),
        g_(thread_ % kWarp / 4),
        t_(thread_ % 4),
        tile_(warp_ % kGdnRowTiles),
        warp_column_(warp_ / kGdnRowTiles * Shape::kWarpColumns) {
    const auto take = [&shared](int count) { return shared += count, shared - count; };
    k_ = reinterpret_cast<T*>(take(Shape::kKeyBuffers * Shape::kRowsFloats));
    q_ = reinterpret_cast<T*>(take(Shape::kRowsFloats));
    solve_ = take(Shape::kSolveFloats);
    factors_ = take(2 * PreparedBlock::kFactors);
    state_ = take(kKeys * Shape::kStateRow);
    values_ = take(kBlock * Shape::kValueRow);
  }

  // Blocks begin .. end-1 of the segment.
  __device__ void run(int begin, int end) {
    load_keys(begin);
    load_queries(begin);
    load_solve(begin);
    commit_async();
    load_state();
    bool folded = false;
    for (int block = begin; block < end; ++block) {
      rows_ = block_rows(segment_, block);
      float v[Shape::kWarpTiles][4];
      load_values(v);
      wait_async<0>();
      __syncthreads();  // keys, queries, factors, the state; nobody reads the block before

      float out[Shape::kWarpTiles][4] = {};
      read_state(block, v, out);
      float4 operand[kMaxSteps];
      if (!Shape::kFetchesAhead) load_operand(prepared(block).solve, operand);
      __syncthreads();
      if (block + 1 < end) {
        if (Shape::kFetchesAhead) load_keys(block + 1);
        load_queries(block + 1);
        commit_async();
      }

      float n[Shape::kWarpTiles][4] = {};
      if (Shape::kFetchesAhead) load_operand(solve_, operand);
      multiply(operand, n);
      load_operand(prepared(block).attention, operand);
      __syncthreads();  // before n replaces x, and the next solve this one
      put_values(n);
      if (Shape::kFetchesAhead && block + 1 < end) {
        load_solve(block + 1);
        commit_async();
      }
      __syncthreads();
      multiply(operand, out);
      store_out(out);

      const bool prompt_ends = is_last(rows_) && segment_.ends_prompt != 0;
      if (rows_.end == kBlock || prompt_ends) {
        fold(block);
        folded = true;
      }
      if (!Shape::kFetchesAhead && block + 1 < end) {
        __syncthreads();  // the keys have been used
        load_keys(block + 1);
        commit_async();
      }
    }
    if (folded) move_state<false>();
  }

 private:
  static constexpr int kMaxSteps = TriangleOperand::steps_of(kGdnRowTiles - 1);

  __device__ PreparedBlock prepared(int block) const {
    return {a_.scratch, scratch_block_ + block, a_.shape.num_v_heads, v_head_};
  }

  __device__ bool is_last(const BlockRows& rows) const {
    return rows.first_row + rows.end - rows.begin == segment_.first_row + segment_.num_rows;
  }

  __device__ T* keys(int block) const {
    return k_ + block % Shape::kKeyBuffers * kBlock * kKeyRow<T, kKeys>;
  }
  __device__ float* factors(int block) const {
    return factors_ + block % 2 * PreparedBlock::kFactors;
  }

  __device__ void load_keys(int block) const {
    const BlockRows rows = block_rows(segment_, block);
    const float* open = rows.begin > 0 ? open_block_of(a_, segment_.slot, v_head_).k : nullptr;
    load_rows<T, kKeys>(a_, rows, head_.k, open, keys(block));
  }

  // And the factors of the block.
  __device__ void load_queries(int block) const {
    load_rows<T, kKeys>(a_, block_rows(segment_, block), head_.q, nullptr, q_);
    constexpr int kPieces = PreparedBlock::kFactors / 4;
    if (thread_ < kPieces) {
      copy_async16(factors(block) + 4 * thread_, prepared(block).factors + 4 * thread_, true);
    }
  }

  __device__ void load_solve(int block) const {
    if (!Shape::kFetchesAhead) return;
    const float* from = prepared(block).solve;
    for (int i = 4 * thread_; i < TriangleOperand::kFloats; i += 4 * kGdnThreads) {
      copy_async16(solve_ + i, from + i, true);
    }
  }

  // The warp's tile of rows of a triangular matrix.
  __device__ void load_operand(const float* from, float4 (&operand)[kMaxSteps]) const {
    const auto* steps =
        reinterpret_cast<const float4*>(from) + TriangleOperand::first_step(tile_) * kWarp;
#pragma unroll
    for (int s = 0; s < kMaxSteps; ++s) {
      operand[s] = s < TriangleOperand::steps_of(tile_) ? steps[s * kWarp + thread_ % kWarp]
                                                        : make_float4(0, 0, 0, 0);
    }
  }

  // Calls function(tile of columns, e, row of the block, column of the strip) for the pairs of
  // neighbouring columns - elements e and e + 1 - of the warp's part of a product.
  template <class Function>
  __device__ __forceinline__ void for_pairs(const Function& function) const {
#pragma unroll
    for (int n = 0; n < Shape::kWarpTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; e += 2) {
        function(n, e, tile_ * kGdnTile + g_ + e * 4, warp_column_ + n * 8 + 2 * t_);
      }
    }
  }

  __device__ void load_values(float (&v)[Shape::kWarpTiles][4]) const {
    const float* open = rows_.begin > 0 ? open_block_of(a_, segment_.slot, v_head_).v : nullptr;
    for_pairs([&](int n, int e, int i, int column) {
      const int d = first_column_ + column;
      float2 pair = {0, 0};
      if (d < a_.shape.v_dim && i < rows_.end) {
        const std::int64_t row = std::int64_t{rows_.first_row} + i - rows_.begin;
        pair = i < rows_.begin
                   ? load2(open + i * a_.shape.v_dim + d)
                   : load2(static_cast<const T*>(a_.qkv) + row * a_.shape.channels() + head_.v + d);
      }
      v[n][e] = pair.x;
      v[n][e + 1] = pair.y;
    });
  }

  // x to shared memory, e^c S^T q^ to `out`. Step by step a lane takes four neighbouring keys as k
  // indices t and t + 4 of two instructions.
  __device__ void read_state(int block, const float (&v)[Shape::kWarpTiles][4],
                             float (&out)[Shape::kWarpTiles][4]) const {
    constexpr int kRow = kKeyRow<T, kKeys>;
    const int place = (tile_ * kGdnTile + g_) * kRow + 4 * t_;
    const T* k = keys(block) + place;
    const T* q = q_ + place;
    const float* s = state_ + 4 * t_ * Shape::kStateRow + warp_column_ + g_;
    float read[Shape::kWarpTiles][4] = {};
#pragma unroll 2
    for (int d = 0; d < kKeys; d += 16) {
      float key[2][4], query[2][4];  // rows g and g + 8
      load4(k + d, key[0]);
      load4(k + 8 * kRow + d, key[1]);
      load4(q + d, query[0]);
      load4(q + 8 * kRow + d, query[1]);
#pragma unroll
      for (int half = 0; half < 4; half += 2) {
        const Tf32A<kExact> of_keys(key[0][half], key[1][half], key[0][half + 1], key[1][half + 1]);
        const Tf32A<kExact> of_queries(query[0][half], query[1][half], query[0][half + 1],
                                       query[1][half + 1]);
#pragma unroll
        for (int n = 0; n < Shape::kWarpTiles; ++n) {
          const float* column = s + (d + half) * Shape::kStateRow + n * 8;
          const Tf32B<false> b(column[0], column[Shape::kStateRow]);
          mma_fp32(read[n], of_keys, b);
          mma_fp32(out[n], of_queries, b);
        }
      }
    }
    const float* f = factors(block);
    for_pairs([&](int n, int e, int i, int column) {
      const float of_key = -f[PreparedBlock::kKey + i], of_query = f[PreparedBlock::kQuery + i];
      *reinterpret_cast<float2*>(values_ + i * Shape::kValueRow + column) =
          make_float2(fmaf(of_key, read[n][e], v[n][e]), fmaf(of_key, read[n][e + 1], v[n][e + 1]));
      out[n][e] *= of_query;
      out[n][e + 1] *= of_query;
    });
  }

  // sums += A values for the warp's tile of rows and its columns.
  __device__ void multiply(const float4 (&operand)[kMaxSteps],
                           float (&sums)[Shape::kWarpTiles][4]) const {
    const float* x = values_ + t_ * Shape::kValueRow + warp_column_ + g_;
#pragma unroll
    for (int s = 0; s < kMaxSteps; ++s) {
      if (s >= TriangleOperand::steps_of(tile_)) break;
      const Tf32A<false> a(operand[s].x, operand[s].y, operand[s].z, operand[s].w);
#pragma unroll
      for (int n = 0; n < Shape::kWarpTiles; ++n) {
        const float* column = x + s * 8 * Shape::kValueRow + n * 8;
        mma_fp32(sums[n], a, Tf32B<false>(column[0], column[4 * Shape::kValueRow]));
      }
    }
  }

  __device__ void put_values(const float (&values)[Shape::kWarpTiles][4]) const {
    for_pairs([&](int n, int e, int i, int column) {
      *reinterpret_cast<float2*>(values_ + i * Shape::kValueRow + column) =
          make_float2(values[n][e], values[n][e + 1]);
    });
  }

  __device__ void store_out(const float (&out)[Shape::kWarpTiles][4]) const {
    for_pairs([&](int n, int e, int i, int column) {
      const int d = first_column_ + column;
      if (i < rows_.begin || i >= rows_.end || d >= a_.shape.v_dim) return;
      const std::int64_t row = std::int64_t{rows_.first_row} + i - rows_.begin;
      float* to = a_.out + (row * a_.shape.num_v_heads + v_head_) * a_.shape.v_dim + d;
      *reinterpret_cast<float2*>(to) = make_float2(out[n][e], out[n][e + 1]);
    });
  }

  // S <- e^{c_last} S + K^T (weights N). A warp owns 16 or 32 keys and all columns; row g of an
  // instruction is the even key of a pair, row g + 8 the odd one.
  __device__ void fold(int block) {
    constexpr int kRow = kKeyRow<T, kKeys>;
    const float* f = factors(block);
    const float decay = f[PreparedBlock::kDecay];
#pragma unroll
    for (int m = 0; m < Shape::kFoldRows; ++m) {
#pragma unroll
      for (int n = 0; n < Shape::kFoldTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s_[m][n][e] *= decay;
      }
    }
    const T* k = keys(block) + t_ * kRow + key_of_lane();
    const float* values = values_ + t_ * Shape::kValueRow + g_;
    const float* weights = f + PreparedBlock::kFold + t_;
#pragma unroll 2
    for (int j = 0; j < kBlock; j += 8) {
      const float weight[2] = {weights[j], weights[j + 4]};
#pragma unroll
      for (int m = 0; m < Shape::kFoldRows; ++m) {
        const float2 low = load2(k + j * kRow + m * kGdnTile);
        const float2 high = load2(k + (j + 4) * kRow + m * kGdnTile);
        const Tf32A<kExact> a(low.x, low.y, high.x, high.y);
#pragma unroll
        for (int n = 0; n < Shape::kFoldTiles; ++n) {
          const float* column = values + j * Shape::kValueRow + n * 8;
          const Tf32B<false> b(weight[0] * column[0], weight[1] * column[4 * Shape::kValueRow]);
          mma_fp32(s_[m][n], a, b);
        }
      }
    }
    share_state();
  }

  // The even key of the lane's pair, in the warp's first tile.
  __device__ int key_of_lane() const { return warp_ * Shape::kFoldRows * kGdnTile + 2 * g_; }

  // Between registers and memory.
  template <bool kLoad>
  __device__ void move_state() {
    const std::int64_t v_dim = a_.shape.v_dim;
    float* state = a_.state.s + (std::int64_t{segment_.slot} * a_.shape.num_v_heads + v_head_) *
                                    a_.shape.k_dim * v_dim;
#pragma unroll
    for (int m = 0; m < Shape::kFoldRows; ++m) {
#pragma unroll
      for (int n = 0; n < Shape::kFoldTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          const int key = key_of_lane() + m * kGdnTile + e / 2;
          const int d = first_column_ + n * 8 + 2 * t_;
          const bool exists = key < a_.shape.k_dim && d < v_dim;
          auto* place = reinterpret_cast<float2*>(state + key * v_dim + d);
          if (kLoad) {
            const float2 pair = exists ? *place : make_float2(0, 0);
            s_[m][n][e] = pair.x;
            s_[m][n][e + 1] = pair.y;
          } else if (exists) {
            *place = make_float2(s_[m][n][e], s_[m][n][e + 1]);
          }
        }
      }
    }
  }

  __device__ void load_state() {
    move_state<true>();
    share_state();
  }

  __device__ void share_state() const {
#pragma unroll
    for (int m = 0; m < Shape::kFoldRows; ++m) {
#pragma unroll
      for (int n = 0; n < Shape::kFoldTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          const int key = key_of_lane() + m * kGdnTile + e / 2;
          *reinterpret_cast<float2*>(state_ + key * Shape::kStateRow + n * 8 + 2 * t_) =
              make_float2(s_[m][n][e], s_[m][n][e + 1]);
        }
      }
    }
  }

  const ops::GatedDeltaRuleArgs& a_;
  const ops::Segment segment_;
  const int scratch_block_;  // of the segment's block 0, within the scratch
  const int v_head_, first_column_;
  const GdnHead head_;
  const int thread_, warp_, g_, t_;
  const int tile_, warp_column_;  // rows and columns of the warp, before the fold
  T* k_;                          // [kKeyBuffers][64][kKeyRow], raw
  T* q_;                          // [64][kKeyRow], raw
  float* solve_;                  // a TriangleOperand, if the shape fetches ahead
  float* factors_;                // [2][PreparedBlock::kFactors]
  float* state_;                  // [kKeys][kStateRow]
  float* values_;                 // [64][kValueRow]: x, then n
  BlockRows rows_;
  float s_[Shape::kFoldRows][Shape::kFoldTiles][4];
};

// The scratch holds blocks first_block .. first_block + num_blocks - 1 of the call.
template <class T, int kKeys>
__global__ void __launch_bounds__(kGdnThreads, sizeof(T) == 2 ? 2 : 1)
    gated_delta_blocks_kernel(const __grid_constant__ ops::GatedDeltaRuleArgs a, int first_block,
                              int num_blocks) {
  extern __shared__ float4 shared[];
  const int index = static_cast<int>(blockIdx.x);
  int before = 0;  // blocks of segments before this one
  for (int i = 0; i < index; ++i) before += blocks_of(a.batch.segments[i]);
  const ops::Segment segment = a.batch.segments[index];
  const int begin = max(0, first_block - before);
  const int end = min(blocks_of(segment), first_block + num_blocks - before);
  if (begin >= end) return;
  Strip<T, kKeys>(a, reinterpret_cast<float*>(shared), segment, before - first_block)
      .run(begin, end);
}

// The rows that a segment leaves in an open block, as they came, when nobody still reads those of
// the block before. One thread block a segment and head.
template <class T>
__global__ void __launch_bounds__(kGdnThreads)
    gated_delta_open_kernel(const __grid_constant__ ops::GatedDeltaRuleArgs a) {
  const ops::Segment segment = a.batch.segments[blockIdx.x];
  if (segment.num_rows == 0 || segment.ends_prompt != 0) return;
  const BlockRows rows = block_rows(segment, blocks_of(segment) - 1);
  if (rows.end == kBlock) return;
  const int v_head = static_cast<int>(blockIdx.y);
  const int k_dim = a.shape.k_dim, v_dim = a.shape.v_dim;
  const GdnHead head = gdn_head(a.shape, v_head);
  const OpenBlock open = open_block_of(a, segment.slot, v_head);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  for (int i = rows.begin + static_cast<int>(threadIdx.x / kWarp); i < rows.end; i += kGdnWarps) {
    const std::int64_t row = std::int64_t{rows.first_row} + i - rows.begin;
    const T* qkv = static_cast<const T*>(a.qkv) + row * a.shape.channels();
    for (int d = lane; d < k_dim; d += kWarp) open.k[i * k_dim + d] = load_float(qkv + head.k + d);
    for (int d = lane; d < v_dim; d += kWarp) open.v[i * v_dim + d] = load_float(qkv + head.v + d);
    if (lane != 0) continue;
    const GdnGate gate = gate_of_row(a, row, v_head);
    open.g[i] = gate.g;
    open.beta[i] = gate.beta;
  }
}

template <class T, int kKeys>
void run(const CudaBackend& backend, const ops::GatedDeltaRuleArgs& args) {
  using Shape = StripShape<T, kKeys>;
  const auto segments = static_cast<unsigned>(args.batch.num_segments);
  const auto heads = static_cast<unsigned>(args.shape.num_v_heads);
  const dim3 strips(segments, heads, blocks_for(args.shape.v_dim, Shape::kColumns));
  const auto most = static_cast<int>(max_blocks(args.batch.num_rows, args.batch.num_segments));
  // As many blocks at a time as the scratch holds; the state waits in memory. With few segments,
  // that is all of them.
  const int at_once = scratch_blocks(args.batch.num_rows);
  for (int first = 0; first < most; first += at_once) {
    const int blocks = std::min(at_once, most - first);
    gated_delta_prepare(backend, args, first, blocks);
    launch(backend, gated_delta_blocks_kernel<T, kKeys>, strips, kGdnThreads,
           sizeof(float) * Shape::kFloats, args, first, blocks);
  }
  if (args.state.open_block != nullptr) {
    launch(backend, gated_delta_open_kernel<T>, dim3(segments, heads), kGdnThreads, 0, args);
  }
}

}  // namespace

std::size_t gated_delta_blocks_scratch_bytes(const ops::GdnShape& shape, int max_rows) {
  return sizeof(float) * static_cast<std::size_t>(PreparedBlock::kFloats) *
         static_cast<std::size_t>(shape.num_v_heads) *
         static_cast<std::size_t>(scratch_blocks(max_rows));
}

void gated_delta_blocks(const CudaBackend& backend, const ops::GatedDeltaRuleArgs& args) {
  with_float_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.shape.k_dim <= kGdnNarrowKeys) {
      run<T, kGdnNarrowKeys>(backend, args);
    } else {
      run<T, kGdnWideKeys>(backend, args);
    }
  });
}

}  // namespace tandem::cuda
