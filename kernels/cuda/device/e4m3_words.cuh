// E4M3 codes of weights as operands of the bf16 matrix instruction. As with FP4 (e2m1.cuh) the four
// codes of a 32-bit word, columns 4j .. 4j+3, are laid out once, when the weight is loaded: a pair
// of neighbouring columns then takes one mask and at most two shifts.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tandem::cuda {

// Sign, exponent and mantissa of a code where bf16 has them, in both halves of a pair: the bias is
// off by 120, so that the value is 2^-120 of the code's.
inline constexpr uint32_t kE4m3Fields = 0x87f087f0u;

// Columns 2p (lower half) and 2p + 1 of a prepacked word.
__host__ __device__ constexpr uint32_t e4m3_pair(uint32_t word, int p) {
  return (p == 0 ? word : word << 4 ^ word >> 4) & kE4m3Fields;
}

// The word that e4m3_pair() reads, from codes as checkpoints have them: column i in byte i.
//
// The first pair has bits of its own. The second is read from the others by two shifts at once;
// what those bring along is cancelled here.
__host__ __device__ constexpr uint32_t prepacked_e4m3(uint32_t codes) {
  uint32_t pairs[2] = {};
  for (int i = 0; i < 4; ++i) {
    const uint32_t code = codes >> (8 * i) & 0xffu;
    pairs[i / 2] |= ((code & 0x80u) << 8 | (code & 0x7fu) << 4) << (i % 2 * 16);
  }
  uint32_t word = pairs[0];
  // From the top: a bit that is read by the left shift of one field shows in the right shift of a
  // lower one.
  for (int field = 31; field >= 4; --field) {
    if ((kE4m3Fields >> field & 1u) == 0) continue;
    const uint32_t differs = (e4m3_pair(word, 1) ^ pairs[1]) >> field & 1u;
    const bool by_right_shift = field % 16 >= 8 && field % 16 <= 10;
    word ^= differs << (by_right_shift ? field + 4 : field - 4);
  }
  return word;
}

}  // namespace tandem::cuda
