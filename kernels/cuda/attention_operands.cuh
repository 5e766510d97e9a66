// Operands of the matrix products of attention of generated rows, as they come from shared memory:
// queries, keys and values, the latter two in BF16 or as FP8 codes.
//
// Scores are keys times queries, over dimensions 16 at a time. Where a word holds two bf16
// neighbours, lane t has dimensions 2t, 2t + 1, 2t + 8 and 2t + 9 of 16. A word of codes holds four
// neighbours, and their pairs are the odd and the even ones: lane t has 4t + 1, 4t + 3, 4t and
// 4t + 2, of keys and queries alike.
//
// Values are transposed, with dimensions as rows. Halves of 16 bits change places as a whole: with
// bf16, row g of a tile is dimension g; with codes two dimensions travel together, and rows g and
// g + 8 are dimensions 2g and 2g + 1.
#pragma once

#include "kernels/cuda/attention_stream.cuh"
#include "kernels/cuda/device/e4m3.cuh"
#include "kernels/cuda/device/fragments.cuh"
#include "kernels/cuda/device/mma.cuh"

namespace tandem::cuda {

__device__ __forceinline__ int lane_of_warp() { return static_cast<int>(threadIdx.x % kWarp); }
__device__ __forceinline__ int warp_of_block() { return static_cast<int>(threadIdx.x / kWarp); }

// A warp's share of the queries for as long as a span lasts: of each group of 32 dimensions two
// products' operands.
template <class S>
struct Queries {
  uint32_t words[S::kTiles][S::kScoreGroups][4];

  __device__ __forceinline__ void load(const uint4* queries) {
    const int lane = lane_of_warp();
    const int first_piece = warp_of_block() / S::kKeyTiles * S::kScoreGroups * 4;
#pragma unroll
    for (int c = 0; c < S::kTiles; ++c) {
#pragma unroll
      for (int i = 0; i < S::kScoreGroups; ++i) {
        if constexpr (S::kCodes) {
#pragma unroll
          for (int chain = 0; chain < 2; ++chain) {
            // Dimensions 4t .. 4t + 3 of 16: half a piece.
            const int piece = first_piece + i * 4 + chain * 2 + lane % 4 / 2;
            const uint4* row = queries + place_of_piece<S::kQueryPieces>(c * 8 + lane / 4, piece);
            const uint2 four = reinterpret_cast<const uint2*>(row)[lane % 2];
            words[c][i][2 * chain] = __byte_perm(four.x, four.y, 0x7632);
            words[c][i][2 * chain + 1] = __byte_perm(four.x, four.y, 0x5410);
          }
        } else {
          load_matrices(words[c][i],
                        queries + place_of_piece<S::kQueryPieces>(c * 8 + lane % 8,
                                                                  first_piece + i * 4 + lane / 8));
        }
      }
    }
  }
};

// 16 keys of a warp in 16 dimensions: chain 0 and 1 are the halves of group i of 32.
template <class S>
struct KeyOperands {
  uint32_t words[4];
  uint32_t codes[4];  // FP8: of both chains

  // Codes of a group come at once.
  __device__ __forceinline__ void load_all(const uint4* keys, int first_key, int part, int i) {
    if constexpr (S::kCodes) {
      const int matrix = lane_of_warp() / 8;
      const int key = first_key + lane_of_warp() % 8 + matrix % 2 * 8;
      const int piece = (part * S::kScoreGroups + i) * 2 + matrix / 2;
      load_matrices(codes, keys + place_of_piece<S::kPieces>(key, piece));
    }
  }

  __device__ __forceinline__ void load(const uint4* keys, int first_key, int part, int i,
                                       int chain) {
    if constexpr (S::kCodes) {
      const CodePairs low = pairs_of_codes(codes[2 * chain]);  // keys 0 to 7
      const CodePairs high = pairs_of_codes(codes[2 * chain + 1]);
      words[0] = low.odd;
      words[1] = high.odd;
      words[2] = low.even;
      words[3] = high.even;
    } else {
      const int matrix = lane_of_warp() / 8;
      const int key = first_key + lane_of_warp() % 8 + matrix % 2 * 8;
      const int piece = (part * S::kScoreGroups + i) * 4 + chain * 2 + matrix / 2;
      load_matrices(words, keys + place_of_piece<S::kPieces>(key, piece));
    }
  }
};

// Values of keys 16 k to 16 k + 15 in a warp's tile m of 16 dimensions, for m in ascending order.
template <class S>
struct ValueOperands {
  uint32_t words[4];
  uint32_t codes[4];  // FP8: of tiles m and m + 1
  static_assert(!S::kCodes || S::kDimTiles % 2 == 0);

  __device__ __forceinline__ void load(const uint4* values, int k, int m, int dim_tile) {
    const int lane = lane_of_warp();
    const int matrix = lane / 8;
    if constexpr (S::kCodes) {
      if (m % 2 == 0) {
        const int key = k * 16 + lane % 8 + matrix % 2 * 8;
        load_transposed(codes, values + place_of_piece<S::kPieces>(key, dim_tile + matrix / 2));
      }
      const CodePairs low = pairs_of_codes(codes[m % 2 * 2]);  // keys 0 to 7
      const CodePairs high = pairs_of_codes(codes[m % 2 * 2 + 1]);
      words[0] = low.even;
      words[1] = low.odd;
      words[2] = high.even;
      words[3] = high.odd;
    } else {
      const int key = k * 16 + lane % 8 + matrix / 2 * 8;
      load_transposed(words, values + place_of_piece<S::kPieces>(key, dim_tile * 2 + matrix % 2));
    }
  }
};

}  // namespace tandem::cuda
