// Operands of the bf16 matrix instruction on their way from shared memory, and fp32 numbers as
// operands. Rows in shared memory are cut into pieces of 16 bytes whose places are permuted within
// groups of eight, so that the same piece of eight neighbouring rows lies in different banks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tandem::cuda {

// Where a piece of a row lies, in pieces; kPieces of a row, a multiple of 8.
template <int kPieces>
__device__ __forceinline__ int place_of_piece(int row, int piece) {
  static_assert(kPieces % 8 == 0);
  return row * kPieces + (piece ^ (row & 7));
}

// Four 8 x 8 matrices of bf16. Lane 8 j + r names row r of matrix j; lane (g, t) gets of matrix j,
// in word j, elements 2t and 2t + 1 of row g.
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], const uint4* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
}

// The same, but lane (g, t) gets column g's elements of rows 2t and 2t + 1.
__device__ __forceinline__ void load_transposed(uint32_t (&words)[4], const uint4* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(address)
               : "memory");
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

__device__ __forceinline__ uint32_t round_pair(float first, float second) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(second), "f"(first));
  return packed;
}

__device__ __forceinline__ SplitPair split_pair(float first, float second) {
  SplitPair pair;
  pair.high = round_pair(first, second);
  pair.low = round_pair(first - __uint_as_float(pair.high << 16),
                        second - __uint_as_float(pair.high & 0xffff0000u));
  return pair;
}

}  // namespace tandem::cuda
