// E4M3 codes as operands of the bf16 matrix instruction. A word of four codes becomes two pairs,
// even and odd codes apart: so no byte has to change its half, and whoever brings the other operand
// pairs its elements alike.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tandem::cuda {

// As bf16: codes 0 and 2 of a word, and codes 1 and 3.
struct CodePairs {
  uint32_t even, odd;
};

// Both halves times a power of two. bf16 multiplication keeps subnormal operands.
__device__ __forceinline__ uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t c;
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

// 2^120 in both halves: moves the bias from 7 to 127, and makes subnormal codes right.
inline constexpr uint32_t kE4m3Bias = 0x7b807b80u;

// The codes in the upper bytes of both halves, exactly: exponent and mantissa land in bf16's
// fields. NaN reads as 480.
__device__ __forceinline__ uint32_t pair_of_codes(uint32_t codes) {
  return multiply_pairs((codes & 0x80008000u) | ((codes >> 4) & 0x07f007f0u), kE4m3Bias);
}

__device__ __forceinline__ CodePairs pairs_of_codes(uint32_t word) {
  return {pair_of_codes(word << 8), pair_of_codes(word)};
}

}  // namespace tandem::cuda
