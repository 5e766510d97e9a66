// The layout of prepacked FP4 codes (cuda/device/e2m1.cuh). Needs no GPU.
#include "kernels/cuda/device/e2m1.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <set>

#include "base/types.h"

namespace tandem::cuda {
namespace {

// Column i of a prepacked word as the linears see it: bf16, but for a power of two.
float decoded(std::uint32_t word, int i) {
  const std::uint32_t pair = e2m1_pair(word, i / 2);
  return to_float(bf16{static_cast<std::uint16_t>(pair >> (i % 2 * 16))}) * 0x1p126f;
}

TEST(PrepackedE2m1, EveryCodeInEveryPlaceWhateverIsInTheOthers) {
  std::mt19937 random(1);
  for (int place = 0; place < 8; ++place) {
    for (std::uint32_t code = 0; code < 16; ++code) {
      for (int i = 0; i < 2000; ++i) {
        const std::uint32_t others = i == 0 ? 0 : i == 1 ? ~0u : random();
        const std::uint32_t codes = (others & ~(0xfu << 4 * place)) | code << 4 * place;
        const std::uint32_t word = prepacked_e2m1(codes);
        for (int column = 0; column < 8; ++column) {
          const float expected =
              e2m1_to_float(static_cast<std::uint8_t>(codes >> 4 * column & 0xf));
          const float actual = decoded(word, column);
          ASSERT_EQ(actual, expected) << "column " << column << " of " << codes;
          ASSERT_EQ(std::signbit(actual), std::signbit(expected));
        }
      }
    }
  }
}

// A product with a factor must see nothing but the code.
TEST(PrepackedE2m1, LeavesNoOtherBitsInAPair) {
  std::mt19937 random(2);
  for (int i = 0; i < 100000; ++i) {
    const std::uint32_t word = random();
    for (int p = 0; p < 4; ++p) ASSERT_EQ(e2m1_pair(word, p) & ~kE2m1Fields, 0u);
  }
}

// Words and their codes correspond one to one: no bit of a word goes unread.
TEST(PrepackedE2m1, EveryBitOfAWordCounts) {
  std::mt19937 random(3);
  const auto fields = [](std::uint32_t word) {
    return std::tuple(e2m1_pair(word, 0), e2m1_pair(word, 1), e2m1_pair(word, 2),
                      e2m1_pair(word, 3));
  };
  for (int i = 0; i < 1000; ++i) {
    const std::uint32_t word = random();
    for (int bit = 0; bit < 32; ++bit) EXPECT_NE(fields(word), fields(word ^ 1u << bit)) << bit;
  }
}

}  // namespace
}  // namespace tandem::cuda
