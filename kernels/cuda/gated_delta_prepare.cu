// The part of the gated delta rule in blocks that does not need the state: of each block and head
// the products of its keys and queries, and the inverse of the triangular system that the
// pseudo-values solve. All blocks and heads are independent thread blocks.
//
// With M_ij = beta_i e^{c_i - c_j} (k^_i . k^_j), j < i, the pseudo-values are
// n = (1 + M)^-1 beta (v - e^c S^T k^). Entries of the inverse are products of beta and
// contractions 1 - beta k^ k^T, so none exceeds 1 and it can be formed. Its diagonal tiles are
// solved row by row, the tiles below them follow from those above: I_ab = -I_aa sum_{b <= l < a}
// M_al I_lb.
//
// Row i of every result depends on rows up to i alone, in an order that its place in the block
// decides: rows that are not there yet are zeros.
#include "kernels/cuda/device/mma_tf32.cuh"
#include "kernels/cuda/gated_delta_blocks.cuh"

namespace tandem::cuda {
namespace {

constexpr int kBlock = ops::kGdnBlock;
constexpr int kSystemRow = kBlock + 4;   // read as operand A: 8 rows of 4 columns, 32 banks
constexpr int kInverseRow = kBlock + 8;  // read as operand B: 4 rows of 8 columns

// Dynamic shared memory: the rows of the block, and when their products are known, two matrices in
// their place.
template <class T, int kKeys>
constexpr std::size_t prepare_shared_bytes() {
  constexpr std::size_t kRows = 2 * kBlock * kKeyRow<T, kKeys> * sizeof(T);
  constexpr std::size_t kMatrices = kBlock * (kSystemRow + kInverseRow) * sizeof(float);
  return kRows > kMatrices ? kRows : kMatrices;
}

// Per row of the block.
struct RowScalars {
  float g[kBlock];
  float c[kBlock];  // log-decay from the block's start
  float beta[kBlock];
  float key_norm[kBlock], query_norm[kBlock];  // reciprocals; the query's with k_dim^-1/2
};

template <class T, int kKeys>
class Prepare {
 public:
  __device__ Prepare(const ops::GatedDeltaRuleArgs& a, RowScalars& scalars, float* shared)
      : a_(a),
        scalars_(scalars),
        k_(reinterpret_cast<T*>(shared)),
        q_(k_ + kBlock * kKeyRow<T, kKeys>),
        system_(shared),
        inverse_(shared + kBlock * kSystemRow),
        v_head_(static_cast<int>(blockIdx.y)),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / kWarp),
        lane_(thread_ % kWarp),
        g_(lane_ / 4),
        t_(lane_ % 4) {}

  __device__ void run(const ops::Segment& segment, int block, PreparedBlock to) {
    rows_ = block_rows(segment, block);
    const OpenBlock open = rows_.begin > 0 ? open_block_of(a_, segment.slot, v_head_) : OpenBlock{};
    const GdnHead head = gdn_head(a_.shape, v_head_);
    load_rows<T, kKeys>(a_, rows_, head.k, open.k, k_);
    load_rows<T, kKeys>(a_, rows_, head.q, nullptr, q_);  // earlier rows' outputs are known
    commit_async();
    load_gates(open);
    wait_async<0>();
    __syncthreads();
    norms();
    __syncthreads();
    products(to);
    __syncthreads();
    if (warp_ < kGdnRowTiles) invert_diagonal(warp_ * kGdnTile);
    __syncthreads();
    if (warp_ < kGdnRowTiles - 1) invert_below(warp_);
    __syncthreads();
    store_solve(to.solve);
    store_factors(to.factors);
  }

 private:
  // Gates of all rows; log-decays as one ascending sum. Rows that do not exist do not decay.
  __device__ void load_gates(const OpenBlock& open) {
    if (thread_ < kBlock) {
      GdnGate gate;
      if (thread_ < rows_.begin) {
        gate = {open.g[thread_], open.beta[thread_]};
      } else if (thread_ < rows_.end) {
        gate = gate_of_row(a_, std::int64_t{rows_.first_row} + thread_ - rows_.begin, v_head_);
      }
      scalars_.g[thread_] = gate.g;
      scalars_.beta[thread_] = gate.beta;
    }
    __syncthreads();
    if (thread_ != 0) return;
    float c = 0;
#pragma unroll 16
    for (int i = 0; i < kBlock; ++i) scalars_.c[i] = c += scalars_.g[i];
  }

  __device__ void norms() {
    const int k_dim = a_.shape.k_dim;
    for (int i = warp_; i < kBlock; i += kGdnWarps) {
      const float key = norm_scale(k_ + i * kKeyRow<T, kKeys>, k_dim);
      const float query = norm_scale(q_ + i * kKeyRow<T, kKeys>, k_dim);
      if (lane_ != 0) continue;
      scalars_.key_norm[i] = key;
      scalars_.query_norm[i] = query * query_factor(k_dim);
    }
  }

  // e^{c_i - c_j} for j <= i.
  __device__ float decay(int i, int j) const { return expf(scalars_.c[i] - scalars_.c[j]); }

  // A warp makes 16 rows of k k^T or of q k^T, up to the diagonal tile.
  __device__ void products(const PreparedBlock& to) {
    constexpr bool kExact = kTf32Exact<T>;
    constexpr int kColumnTiles = kBlock / 8;
    const int tile = warp_ % kGdnRowTiles;
    const int last = 2 * tile + 1;  // tile of columns
    const bool of_queries = warp_ / kGdnRowTiles != 0;
    const T* x = (of_queries ? q_ : k_) + (tile * kGdnTile + g_) * kKeyRow<T, kKeys> + 4 * t_;
    const T* y = k_ + g_ * kKeyRow<T, kKeys> + 4 * t_;
    float sums[kColumnTiles][4] = {};
    for (int d = 0; d < kKeys; d += 16) {
      float low[4], high[4];  // rows g and g + 8
      load4(x + d, low);
      load4(x + 8 * kKeyRow<T, kKeys> + d, high);
      const Tf32A<kExact> a[2] = {{low[0], high[0], low[1], high[1]},
                                  {low[2], high[2], low[3], high[3]}};
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        if (n > last) break;
        float key[4];
        load4(y + n * 8 * kKeyRow<T, kKeys> + d, key);
        mma_fp32(sums[n], a[0], Tf32B<kExact>(key[0], key[1]));
        mma_fp32(sums[n], a[1], Tf32B<kExact>(key[2], key[3]));
      }
    }
    __syncthreads();  // the system takes the place of the keys
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      if (n > last) break;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = tile * kGdnTile + g_ + e / 2 * 8;
        const int j = n * 8 + 2 * t_ + e % 2;
        const float norm = of_queries ? scalars_.query_norm[i] : scalars_.key_norm[i];
        const bool used = of_queries ? j <= i : j < i;
        sums[n][e] = used ? decay(i, j) * (norm * scalars_.key_norm[j] * sums[n][e]) : 0.0f;
        if (!of_queries) system_[i * kSystemRow + j] = scalars_.beta[i] * sums[n][e];
      }
      if (!of_queries) continue;
      // Row g and row g + 8 of a column are neighbours in the operand.
      float* step = to.attention + (TriangleOperand::first_step(tile) + n) * kWarp * 4;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 2 * t_ + e;
        float* place = step + (g_ * 4 + column % 4) * 4 + column / 4 * 2;
        *reinterpret_cast<float2*>(place) = make_float2(sums[n][e], sums[n][e + 2]);
      }
    }
  }

  // Inverse of the diagonal tile at row and column `first`: a lane solves one column.
  __device__ void invert_diagonal(int first) {
    const int j = lane_ % kGdnTile;
    float x[kGdnTile];
#pragma unroll
    for (int i = 0; i < kGdnTile; ++i) {
      const float* row = system_ + (first + i) * kSystemRow + first;
      x[i] = i == j ? 1.0f : 0.0f;
#pragma unroll
      for (int l = 0; l < i; ++l) x[i] = fmaf(-row[l], x[l], x[i]);
      if (lane_ < kGdnTile) inverse_[(first + i) * kInverseRow + first + j] = x[i];
    }
  }

  // sums += A B of two 16 x 16 tiles in shared memory.
  __device__ void multiply_tiles(const float* x, int x_row, const float* y,
                                 float (&sums)[2][4]) const {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const float* from = x + g_ * x_row + step * 8 + t_;
      const Tf32A<false> a(from[0], from[8 * x_row], from[4], from[8 * x_row + 4]);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float* column = y + (step * 8 + t_) * kInverseRow + n * 8 + g_;
        mma_fp32(sums[n], a, Tf32B<false>(column[0], column[4 * kInverseRow]));
      }
    }
  }

  __device__ void put_tile(const float (&sums)[2][4], float sign, float* to) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        to[(g_ + e / 2 * 8) * kInverseRow + n * 8 + 2 * t_ + e % 2] = sign * sums[n][e];
      }
    }
  }

  // The inverse's tiles below the diagonal in column `b` of tiles, by one warp; no other warp reads
  // or writes them.
  __device__ void invert_below(int b) {
    const auto tile = [&](int row, int column) {
      return inverse_ + row * kGdnTile * kInverseRow + column * kGdnTile;
    };
    for (int a = b + 1; a < kGdnRowTiles; ++a) {
      float inner[2][4] = {};
      for (int l = b; l < a; ++l) {
        multiply_tiles(system_ + a * kGdnTile * kSystemRow + l * kGdnTile, kSystemRow, tile(l, b),
                       inner);
      }
      put_tile(inner, 1.0f, tile(a, b));
      __syncwarp();
      float sums[2][4] = {};
      multiply_tiles(tile(a, a), kInverseRow, tile(a, b), sums);
      __syncwarp();  // all lanes have read what is overwritten
      put_tile(sums, -1.0f, tile(a, b));
      __syncwarp();
    }
  }

  __device__ void store_solve(float* to) const {
    for (int i = thread_; i < TriangleOperand::kSteps * kWarp; i += kGdnThreads) {
      const int step = i / kWarp;
      int tile = 0;
      while (step >= TriangleOperand::first_step(tile + 1)) ++tile;
      const int row = tile * kGdnTile + g_;
      const int column = (step - TriangleOperand::first_step(tile)) * 8 + t_;
      const float* from = inverse_ + row * kInverseRow + column;
      const float beta[2] = {scalars_.beta[column], scalars_.beta[column + 4]};
      reinterpret_cast<float4*>(to)[i] =
          make_float4(from[0] * beta[0], from[8 * kInverseRow] * beta[0], from[4] * beta[1],
                      from[8 * kInverseRow + 4] * beta[1]);
    }
  }

  __device__ void store_factors(float* to) const {
    if (thread_ >= kBlock) return;
    const float last = scalars_.c[rows_.end - 1], c = scalars_.c[thread_];
    const float key = scalars_.key_norm[thread_];
    to[PreparedBlock::kKey + thread_] = expf(c) * key;
    to[PreparedBlock::kQuery + thread_] = expf(c) * scalars_.query_norm[thread_];
    to[PreparedBlock::kFold + thread_] = expf(last - c) * key;
    to[PreparedBlock::kDecay + thread_] = expf(last);
  }

  const ops::GatedDeltaRuleArgs& a_;
  RowScalars& scalars_;
  T* const k_;            // [64][kKeyRow], raw
  T* const q_;            // [64][kKeyRow], raw
  float* const system_;   // [64][kSystemRow]: M, where the keys were
  float* const inverse_;  // [64][kInverseRow]
  const int v_head_;
  const int thread_, warp_, lane_;
  const int g_, t_;
  BlockRows rows_;
};

template <class T, int kKeys>
__global__ void __launch_bounds__(kGdnThreads)
    gated_delta_prepare_kernel(const __grid_constant__ ops::GatedDeltaRuleArgs a, int first_block) {
  extern __shared__ float4 shared[];
  __shared__ RowScalars scalars;
  int block = first_block + static_cast<int>(blockIdx.x);  // of the call, then of its segment
  for (int i = 0; i < a.batch.num_segments; ++i) {
    const ops::Segment segment = a.batch.segments[i];
    const int blocks = blocks_of(segment);
    if (block < blocks) {
      const PreparedBlock to(a.scratch, static_cast<int>(blockIdx.x), a.shape.num_v_heads,
                             static_cast<int>(blockIdx.y));
      Prepare<T, kKeys>(a, scalars, reinterpret_cast<float*>(shared)).run(segment, block, to);
      return;
    }
    block -= blocks;
  }
}

}  // namespace

void gated_delta_prepare(const CudaBackend& backend, const ops::GatedDeltaRuleArgs& args,
                         int first_block, int num_blocks) {
  const dim3 grid(static_cast<unsigned>(num_blocks), static_cast<unsigned>(args.shape.num_v_heads));
  with_float_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.shape.k_dim <= kGdnNarrowKeys) {
      launch(backend, gated_delta_prepare_kernel<T, kGdnNarrowKeys>, grid, kGdnThreads,
             prepare_shared_bytes<T, kGdnNarrowKeys>(), args, first_block);
    } else {
      launch(backend, gated_delta_prepare_kernel<T, kGdnWideKeys>, grid, kGdnThreads,
             prepare_shared_bytes<T, kGdnWideKeys>(), args, first_block);
    }
  });
}

}  // namespace tandem::cuda
