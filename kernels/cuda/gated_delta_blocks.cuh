// What the two kernels of the gated delta rule in blocks share: how blocks are numbered, what the
// first leaves for the second, and how rows of keys and queries come into shared memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/gated_delta.cuh"

namespace tandem::cuda {

inline constexpr int kGdnThreads = 256;
inline constexpr int kGdnWarps = kGdnThreads / kWarp;
inline constexpr int kGdnTile = 16;  // rows of a matrix instruction
inline constexpr int kGdnRowTiles = ops::kGdnBlock / kGdnTile;

// The key dimension is padded with zeros to one of two widths.
inline constexpr int kGdnNarrowKeys = 128;
inline constexpr int kGdnWideKeys = 256;
static_assert(kGdnWideKeys >= ops::kMaxGdnDim);

// Products with raw keys and queries: bf16 values are exact in TF32.
template <class T>
inline constexpr bool kTf32Exact = std::is_same_v<T, bf16>;

// Rows of keys in shared memory are 8 banks further than a multiple of 32, so that eight rows of
// one column and four columns of four rows lie in different banks.
template <class T, int kKeys>
inline constexpr int kKeyRow = kKeys + 32 / static_cast<int>(sizeof(T));

// One block of a segment: rows begin .. end-1 are new, rows before wait in the open block.
struct BlockRows {
  int begin = 0, end = 0;
  int first_row = 0;  // of the batch: row `begin`
};

// Blocks that a segment's rows lie in.
__device__ __forceinline__ int blocks_of(const ops::Segment& segment) {
  const int begin = segment.start_position % ops::kGdnBlock;
  return (begin + segment.num_rows + ops::kGdnBlock - 1) / ops::kGdnBlock;
}

__device__ __forceinline__ BlockRows block_rows(const ops::Segment& segment, int block) {
  const int before = segment.start_position % ops::kGdnBlock;
  const int done = block == 0 ? 0 : block * ops::kGdnBlock - before;  // rows of earlier blocks
  const int begin = block == 0 ? before : 0;
  return {begin, min(ops::kGdnBlock, begin + segment.num_rows - done), segment.first_row + done};
}

// Most blocks of a call: a segment's rows lie in at most two blocks more than they fill.
inline std::int64_t max_blocks(int rows, int segments) {
  const std::int64_t bound = rows / ops::kGdnBlock + 2LL * segments;
  return bound < rows ? bound : rows;
}

// A square matrix of a block, lower triangle with whole tiles, as operands A of mma_tf32.cuh: for
// each tile of rows its steps of eight columns, for each step the lanes' four numbers.
struct TriangleOperand {
  static constexpr int kSteps = kGdnRowTiles * (kGdnRowTiles + 1);
  static constexpr int kFloats = kSteps * kWarp * 4;
  static __host__ __device__ constexpr int steps_of(int tile) { return 2 * (tile + 1); }
  static __host__ __device__ constexpr int first_step(int tile) { return tile * (tile + 1); }
};

// What the first kernel leaves of one block and head, for the rows i, j < 64 of the block.
struct PreparedBlock {
  static constexpr int kFactors = 4 * ops::kGdnBlock;
  static constexpr int kFloats = 2 * TriangleOperand::kFloats + kFactors;

  float* solve;      // (1 + beta_i kk_ij)^-1 beta_j: n = solve (v - e^c S^T k)
  float* attention;  // e^{c_i - c_j} (q^_i . k^_j), j <= i
  float* factors;    // [4][64], see below

  // Indices into factors. Keys and queries stay raw; their norms are in here and in the matrices.
  static constexpr int kKey = 0;                     // e^{c_i} |k_i|^-1
  static constexpr int kQuery = ops::kGdnBlock;      // e^{c_i} |q_i|^-1 k_dim^-1/2
  static constexpr int kFold = 2 * ops::kGdnBlock;   // e^{c_last - c_i} |k_i|^-1
  static constexpr int kDecay = 3 * ops::kGdnBlock;  // e^{c_last}, once

  // `block`: counted within the scratch.
  __device__ PreparedBlock(void* scratch, int block, int num_heads, int head)
      : solve(static_cast<float*>(scratch) + (std::int64_t{block} * num_heads + head) * kFloats),
        attention(solve + TriangleOperand::kFloats),
        factors(attention + TriangleOperand::kFloats) {}
};

// Rows of keys or queries of a block to shared memory [64][kKeyRow], in the background: new rows
// from qkv (at `head` in each row), earlier ones from the open block where it is given; zeros
// elsewhere. The caller commits and waits.
template <class T, int kKeys>
__device__ __forceinline__ void load_rows(const ops::GatedDeltaRuleArgs& a, const BlockRows& rows,
                                          std::int64_t head, const float* open, T* to) {
  constexpr int kPiece = 16 / static_cast<int>(sizeof(T));
  constexpr int kPieces = kKeys / kPiece;
  const int k_dim = a.shape.k_dim;
  const T* qkv = static_cast<const T*>(a.qkv);
#pragma unroll
  for (int n = 0; n < ops::kGdnBlock * kPieces / kGdnThreads; ++n) {
    const int i = (n * kGdnThreads + static_cast<int>(threadIdx.x)) / kPieces;
    const int d = (n * kGdnThreads + static_cast<int>(threadIdx.x)) % kPieces * kPiece;
    T* piece = to + i * kKeyRow<T, kKeys> + d;
    if (i < rows.begin && d < k_dim && open != nullptr) {
      for (int j = 0; j < kPiece; ++j) store_float(open[i * k_dim + d + j], piece + j);
      continue;
    }
    const bool valid = i >= rows.begin && i < rows.end && d < k_dim;
    const std::int64_t row = std::int64_t{rows.first_row} + (valid ? i - rows.begin : 0);
    copy_async16(piece, valid ? qkv + row * a.shape.channels() + head + d : qkv, valid);
  }
}

// Four neighbours of a row of keys in shared memory, as fp32.
__device__ __forceinline__ void load4(const float* x, float (&values)[4]) {
  const float4 v = *reinterpret_cast<const float4*>(x);
  values[0] = v.x, values[1] = v.y, values[2] = v.z, values[3] = v.w;
}

__device__ __forceinline__ void load4(const bf16* x, float (&values)[4]) {
  const float4 v = widen4(*reinterpret_cast<const uint2*>(x));
  values[0] = v.x, values[1] = v.y, values[2] = v.z, values[3] = v.w;
}

__device__ __forceinline__ float2 load2(const float* x) {
  return *reinterpret_cast<const float2*>(x);
}
__device__ __forceinline__ float2 load2(const bf16* x) {
  const uint32_t v = *reinterpret_cast<const uint32_t*>(x);
  return {low_bf16(v), high_bf16(v)};
}

// First kernel: blocks first_block .. first_block + num_blocks - 1 of the call, to scratch.
void gated_delta_prepare(const CudaBackend& backend, const ops::GatedDeltaRuleArgs& args,
                         int first_block, int num_blocks);

// Blocks that the scratch of a call with so many rows holds.
inline int scratch_blocks(int rows) {
  constexpr int kOpenEnds = 16;  // of segments that begin or end inside a block
  return rows / ops::kGdnBlock + kOpenEnds;
}

}  // namespace tandem::cuda
