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

// The queries of a warp's columns for as long as a span lasts: in registers, where there are
// enough.
template <class S>
class Queries {
 public:
  __device__ __forceinline__ void begin(uint32_t queries, int used_columns) {
    const int lane = lane_of_warp();
#pragma unroll
    for (int c = 0; c < S::kTiles; ++c) {
      // Columns that do not exist have any that does: nobody looks at their scores.
      const int column = (place_in_team() * S::kTiles + c) * 8 + (S::kCodes ? lane / 4 : lane % 8);
      const int piece = S::kCodes ? lane % 4 / 2 : lane / 8;
      pieces_[c] = RowPieces(queries, S::kQueryBytes, min(column, used_columns - 1), piece);
      if constexpr (kKept) {
#pragma unroll
        for (int i = 0; i < S::kScoreGroups; ++i) load(c, i, kept_[c][i]);
      }
    }
  }

  // Two products' operands of the 32 dimensions of group i, of all tiles of columns.
  __device__ __forceinline__ void get(int i, uint32_t (&words)[S::kTiles][4]) const {
#pragma unroll
    for (int c = 0; c < S::kTiles; ++c) {
      if constexpr (kKept) {
#pragma unroll
        for (int j = 0; j < 4; ++j) words[c][j] = kept_[c][i][j];
      } else {
        load(c, i, words[c]);
      }
    }
  }

 private:
  static constexpr bool kKept = S::kTiles == 1;

  __device__ __forceinline__ void load(int c, int i, uint32_t (&words)[4]) const {
    if constexpr (S::kCodes) {
#pragma unroll
      for (int chain = 0; chain < 2; ++chain) {
        // Dimensions 4t .. 4t + 3 of 16: half a piece.
        const auto half = static_cast<uint32_t>(lane_of_warp() % 2 * 8);
        const uint2 four = load_shared8(pieces_[c].after(i * 4 + chain * 2) + half);
        words[2 * chain] = __byte_perm(four.x, four.y, 0x7632);
        words[2 * chain + 1] = __byte_perm(four.x, four.y, 0x5410);
      }
    } else {
      load_matrices(words, pieces_[c].after(i * 4));
    }
  }

  RowPieces pieces_[S::kTiles];
  // Defined from the start, so that nothing is held for them while a span ends.
  uint32_t kept_[S::kTiles][kKept ? S::kScoreGroups : 1][4] = {};
};

// Keys of a step: of 16 of them 16 dimensions at a time. Chain 0 and 1 are the halves of group i of
// 32 dimensions.
template <class S>
class KeyOperands {
 public:
  uint32_t words[4];

  __device__ __forceinline__ explicit KeyOperands(uint32_t keys)
      : pieces_(keys, S::kRowBytes, lane_of_warp() % 16, lane_of_warp() / 16) {}

  // Codes of a group come at once.
  __device__ __forceinline__ void load_all(int key_tile, int i) {
    if constexpr (S::kCodes) load_matrices(codes_, pieces_.after(i * 2) + tile_bytes(key_tile));
  }

  __device__ __forceinline__ void load(int key_tile, int i, int chain) {
    if constexpr (S::kCodes) {
      const CodePairs low = pairs_of_codes(codes_[2 * chain]);  // keys 0 to 7
      const CodePairs high = pairs_of_codes(codes_[2 * chain + 1]);
      words[0] = low.odd;
      words[1] = high.odd;
      words[2] = low.even;
      words[3] = high.even;
    } else {
      load_matrices(words, pieces_.after(i * 4 + chain * 2) + tile_bytes(key_tile));
    }
  }

 private:
  static __device__ __forceinline__ uint32_t tile_bytes(int key_tile) {
    return static_cast<uint32_t>(key_tile * 16 * S::kRowBytes);
  }

  RowPieces pieces_;
  uint32_t codes_[4];
};

// Values of a step: of 16 keys 16 dimensions at a time, the latter in ascending order.
template <class S>
class ValueOperands {
 public:
  __device__ __forceinline__ explicit ValueOperands(uint32_t values)
      : pieces_(values, S::kRowBytes, key(), piece()) {}

  __device__ __forceinline__ void load(int key_tile, int m, uint32_t (&words)[4]) {
    const auto tile = static_cast<uint32_t>(key_tile * 16 * S::kRowBytes);
    if constexpr (S::kCodes) {
      // Codes of two tiles of dimensions come at once.
      if (m % 2 == 0) load_transposed(codes_, pieces_.after(m) + tile);
      const CodePairs low = pairs_of_codes(codes_[m % 2 * 2]);  // keys 0 to 7
      const CodePairs high = pairs_of_codes(codes_[m % 2 * 2 + 1]);
      words[0] = low.even;
      words[1] = low.odd;
      words[2] = high.even;
      words[3] = high.odd;
    } else {
      load_transposed(words, pieces_.after(m * 2) + tile);
    }
  }

 private:
  static __device__ __forceinline__ int key() {
    const int lane = lane_of_warp();
    return S::kCodes ? lane % 16 : lane % 8 + lane / 16 * 8;
  }
  static __device__ __forceinline__ int piece() {
    return S::kCodes ? lane_of_warp() / 16 : lane_of_warp() / 8 % 2;
  }

  RowPieces pieces_;
  uint32_t codes_[4];
};

}  // namespace tandem::cuda
