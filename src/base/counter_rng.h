// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC'11, "Parallel random numbers: as
// easy as 1, 2, 3", section 4.3). A value is a pure function of (seed, request, position, purpose,
// index), so it does not depend on batching, ranks or the order of drawing.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace tandem {

enum class RngPurpose : std::uint32_t { kSample = 1, kAccept = 2, kDraft = 3, kDummyWeight = 4 };

struct RngKey {
  std::uint64_t seed = 0;
  std::uint64_t request = 0;  // hash of the request id, equal on all ranks
};

constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
    counter = {
        static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(p1),
        static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(p0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// 32 random bits for each of the elements 4 * block .. 4 * block + 3 of the draw at `position`.
constexpr std::array<std::uint32_t, 4> random_block(RngKey key, std::uint32_t position,
                                                    RngPurpose purpose, std::uint32_t block) {
  const std::uint64_t mixed = key.seed ^ (key.request * 0x9E3779B97F4A7C15ull);
  return philox4x32({block, position, static_cast<std::uint32_t>(purpose),
                     static_cast<std::uint32_t>(key.request >> 32)},
                    {static_cast<std::uint32_t>(mixed), static_cast<std::uint32_t>(mixed >> 32)});
}

// The same for element `index` (a token id, say).
constexpr std::uint32_t random_bits(RngKey key, std::uint32_t position, RngPurpose purpose,
                                    std::uint32_t index) {
  return random_block(key, position, purpose, index / 4)[index % 4];
}

// Uniform in (0, 1): 23 bits, offset by half a step, so that neither end is reached (a 24-bit value
// plus a half would round to 1).
constexpr float uniform01(std::uint32_t bits) {
  return (static_cast<float>(bits >> 9) + 0.5f) * 0x1.0p-23f;
}

// Standard Gumbel noise; argmax(logit / T + gumbel) samples softmax(logit / T).
inline float gumbel(std::uint32_t bits) { return -std::log(-std::log(uniform01(bits))); }

}  // namespace tandem
