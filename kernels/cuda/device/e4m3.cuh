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

// The codes in the upper bytes of both halves, exactly. Exponent and mantissa land in bf16's
// fields; the product moves the bias from 7 to 127 and makes subnormal codes right. NaN reads as
// 480.
__device__ __forceinline__ uint32_t pair_of_codes(uint32_t codes) {
  constexpr uint32_t kTwoTo120 = 0x7b807b80u;
  const uint32_t small = (codes & 0x80008000u) | ((codes >> 4) & 0x07f007f0u);
  uint32_t pair;
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(small), "r"(kTwoTo120));
  return pair;
}

__device__ __forceinline__ CodePairs pairs_of_codes(uint32_t word) {
  return {pair_of_codes(word << 8), pair_of_codes(word)};
}

}  // namespace tandem::cuda
