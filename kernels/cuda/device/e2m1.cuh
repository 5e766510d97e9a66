// E2M1 codes as operands of the bf16 matrix instruction. As checkpoints have them, moving their
// bits to where bf16 has its fields takes more instructions than a GPU has time for at the
// bandwidth of the weights. So the eight codes of a 32-bit word, columns 8j .. 8j+7, are laid out
// once, when the weight is loaded: a pair of neighbouring columns then takes one mask and at most
// two shifts.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tandem::cuda {

// Sign, exponent and mantissa of a code where bf16 has them, in both halves of a pair: the bias is
// off by 126, so that the value is 2^-126 of the code's.
inline constexpr uint32_t kE2m1Fields = 0x81c081c0u;

// Columns 2p (lower half) and 2p + 1 of a prepacked word.
__host__ __device__ constexpr uint32_t e2m1_pair(uint32_t word, int p) {
  switch (p) {
    case 0:
      return word & kE2m1Fields;
    case 1:
      return (word << 6) & kE2m1Fields;
    case 2:
      return (word >> 4 | word << 28) & kE2m1Fields;
    default:
      return (word << 2 ^ word >> 6) & kE2m1Fields;
  }
}

// The word that e2m1_pair() reads, from codes as checkpoints have them: column i in bits 4i ..
// 4i+3.
//
// Four shifts of the fields never cover all bits of a word, so only three pairs have places of
// their own. The last one is spread over the bits that are left and read by two shifts at once;
// what those bring along of other pairs is cancelled here.
__host__ __device__ constexpr uint32_t prepacked_e2m1(uint32_t codes) {
  uint32_t pairs[4] = {};
  for (int i = 0; i < 8; ++i) {
    const uint32_t code = codes >> (4 * i) & 0xfu;
    pairs[i / 2] |= ((code & 8u) << 12 | (code & 7u) << 6) << (i % 2 * 16);
  }
  uint32_t word = pairs[0] | pairs[1] >> 6 | (pairs[2] << 4 | pairs[2] >> 28);
  // From the top, since a bit shows at its right shift, too.
  for (int field = 31; field >= 6; --field) {
    if ((kE2m1Fields >> field & 1u) == 0) continue;
    const uint32_t differs = (e2m1_pair(word, 3) ^ pairs[3]) >> field & 1u;
    word ^= differs << (field % 8 == 0 ? field + 6 : field - 2);
  }
  return word;
}

}  // namespace tandem::cuda
