// The layout of prepacked FP8 codes (cuda/device/e4m3_words.cuh). Needs no GPU.
#include "kernels/cuda/device/e4m3_words.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <utility>

#include "base/types.h"

namespace tandem::cuda {
namespace {

// Column i of a prepacked word as the linears see it: bf16, but for a power of two.
float decoded(std::uint32_t word, int i) {
  const std::uint32_t pair = e4m3_pair(word, i / 2);
  return to_float(bf16{static_cast<std::uint16_t>(pair >> (i % 2 * 16))}) * 0x1p120f;
}

TEST(PrepackedE4m3, EveryCodeInEveryPlaceWhateverIsInTheOthers) {
  std::mt19937 random(1);
  for (int place = 0; place < 4; ++place) {
    for (std::uint32_t code = 0; code < 256; ++code) {
      if ((code & 0x7f) == 0x7f) continue;  // NaN
      for (int i = 0; i < 200; ++i) {
        const std::uint32_t others = i == 0 ? 0 : i == 1 ? ~0u : random();
        const std::uint32_t codes = (others & ~(0xffu << 8 * place)) | code << 8 * place;
        const float expected = to_float(e4m3{static_cast<std::uint8_t>(code)});
        const float actual = decoded(prepacked_e4m3(codes), place);
        ASSERT_EQ(actual, expected) << "code " << code << " at " << place << " of " << codes;
        ASSERT_EQ(std::signbit(actual), std::signbit(expected));
      }
    }
  }
}

// Words and their codes correspond one to one: no bit of a word goes unread.
TEST(PrepackedE4m3, EveryBitOfAWordCounts) {
  std::mt19937 random(2);
  const auto fields = [](std::uint32_t word) {
    return std::pair(e4m3_pair(word, 0), e4m3_pair(word, 1));
  };
  for (int i = 0; i < 1000; ++i) {
    const std::uint32_t word = random();
    for (int bit = 0; bit < 32; ++bit) EXPECT_NE(fields(word), fields(word ^ 1u << bit)) << bit;
  }
}

}  // namespace
}  // namespace tandem::cuda
