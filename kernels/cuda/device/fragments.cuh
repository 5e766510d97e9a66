// Operands of the bf16 matrix instruction on their way from shared memory, and fp32 numbers as
// operands. Rows in shared memory are cut into pieces of 16 bytes whose places are permuted within
// groups of eight, so that the same piece of eight neighbouring rows lies in different banks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/shared_address.cuh"

namespace tandem::cuda {

// Where a piece of a row lies, in pieces; kPieces of a row, a multiple of 8.
template <int kPieces>
__device__ __forceinline__ int place_of_piece(int row, int piece) {
  static_assert(kPieces % 8 == 0);
  return row * kPieces + (piece ^ (row & 7));
}

// Where a lane finds the pieces of one row: `first` is the shared address of one of them, and rows
// begin on multiples of 128 bytes. Permuting and stepping are one operation that way.
struct RowPieces {
  uint32_t first = 0;

  RowPieces() = default;
  // Piece `piece` of row `row` of rows of row_bytes from `rows` on.
  __device__ __forceinline__ RowPieces(uint32_t rows, int row_bytes, int row, int piece)
      : first(rows + static_cast<uint32_t>(row * row_bytes + (piece ^ (row & 7)) * 16)) {}

  // The piece `more` further on; no bit of `more` may be set in the number of the first one.
  __device__ __forceinline__ uint32_t after(int more) const {
    return (first ^ static_cast<uint32_t>(more % 8 * 16)) + static_cast<uint32_t>(more / 8 * 128);
  }
  // The same piece `more` rows further on; no bit of `more` may be set in the first row's number.
  __device__ __forceinline__ uint32_t below(int more, int row_bytes) const {
    return (first ^ static_cast<uint32_t>(more % 8 * 16)) + static_cast<uint32_t>(more * row_bytes);
  }
};

// Four 8 x 8 matrices of bf16. Lane 8 j + r names row r of matrix j, by its shared address; lane
// (g, t) gets of matrix j, in word j, elements 2t and 2t + 1 of row g.
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], const uint4* row) {
  load_matrices(words, shared_address(row));
}

// The same, but lane (g, t) gets column g's elements of rows 2t and 2t + 1.
__device__ __forceinline__ void load_transposed(uint32_t (&words)[4], uint32_t row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t (&words)[4], const uint4* row) {
  load_transposed(words, shared_address(row));
}

// From elements 2t, 2t + 1 of row g to column g's elements of rows 2t, 2t + 1.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t pair) {
  uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

// Two fp32 numbers as bf16 twice, x = high + low: 16 bits of each are kept.
struct SplitPair {
  uint32_t high, low;
};

__device__ __forceinline__ SplitPair split_pair(float first, float second) {
  SplitPair pair;
  pair.high = round_pair(first, second);
  pair.low = round_pair(first - low_bf16(pair.high), second - high_bf16(pair.high));
  return pair;
}

}  // namespace tandem::cuda
