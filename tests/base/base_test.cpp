#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/counter_rng.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/tensor.h"
#include "base/types.h"
#include "base/units.h"

namespace tandem {
namespace {

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f).bits, 0x3f80);      // tie, even below
  EXPECT_EQ(to_bf16(1.0f + 3 * 0x1p-8f).bits, 0x3f82);  // tie, even above
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f + 0x1p-20f).bits, 0x3f81);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(Bf16, RoundTripsEveryFiniteCode) {
  for (std::uint32_t u = 0; u < 0x10000; ++u) {
    const bf16 x{static_cast<std::uint16_t>(u)};
    if (std::isnan(to_float(x))) continue;
    ASSERT_EQ(to_bf16(to_float(x)).bits, x.bits);
  }
}

TEST(Fp8, E4M3KnownCodes) {
  EXPECT_EQ(e4m3_to_float(0x38), 1.0f);
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9f);
  EXPECT_EQ(e4m3_to_float(0x08), 0x1p-6f);
  EXPECT_EQ(e4m3_to_float(0xb8), -1.0f);
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7f)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0xff)));
}

TEST(Fp8, E4M3RoundTripsEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const e4m3 x{static_cast<std::uint8_t>(code)};
    const float value = to_float(x);
    if (std::isnan(value)) {
      EXPECT_EQ(code & 0x7f, 0x7f);
      EXPECT_TRUE(std::isnan(e4m3_to_float(x.code)));
    } else {
      EXPECT_EQ(value, e4m3_to_float(x.code)) << code;
    }
    EXPECT_EQ(to_e4m3(value).code, code);
  }
}

// Halfway between neighbours to the even one, on either side to the nearer one.
TEST(Fp8, E4M3RoundsToNearestEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = to_float(e4m3{static_cast<std::uint8_t>(code)});
    const float high = to_float(e4m3{static_cast<std::uint8_t>(code + 1)});
    const float middle = (low + high) / 2;
    const int even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(to_e4m3(middle).code, even) << code;
    EXPECT_EQ(to_e4m3(std::nextafter(middle, low)).code, code);
    EXPECT_EQ(to_e4m3(std::nextafter(middle, high)).code, code + 1);
    EXPECT_EQ(to_e4m3(-middle).code, 0x80 | even);
  }
}

TEST(Fp8, E4M3Saturates) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {448.0f, 449.0f, 463.9f, 464.0f, 465.0f, 1e30f, infinity}) {
    EXPECT_EQ(to_e4m3(x).code, 0x7e) << x;
    EXPECT_EQ(to_e4m3(-x).code, 0xfe) << x;
  }
  EXPECT_EQ(to_e4m3(0x1p-140f).code, 0);
  EXPECT_EQ(to_e4m3(-0x1p-140f).code, 0x80);
  EXPECT_EQ(to_e4m3(std::numeric_limits<float>::quiet_NaN()).code & 0x7f, 0x7f);
}

TEST(SmallFloats, KnownCodes) {
  EXPECT_EQ(e8m0_to_float(127), 1.0f);
  EXPECT_EQ(e8m0_to_float(0), 0x1p-127f);
  EXPECT_EQ(e2m1_to_float(7), 6.0f);
  EXPECT_EQ(e2m1_to_float(9), -0.5f);
  EXPECT_EQ(f16_to_float(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24f);
  EXPECT_TRUE(std::isinf(f16_to_float(0x7c00)));
}

// Known answers of Random123's kat_vectors for philox4x32-10.
TEST(CounterRng, PhiloxKnownAnswers) {
  EXPECT_THAT(philox4x32({0, 0, 0, 0}, {0, 0}),
              ::testing::ElementsAre(0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u));
  EXPECT_THAT(
      philox4x32({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}, {0xffffffffu, 0xffffffffu}),
      ::testing::ElementsAre(0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu));
}

TEST(CounterRng, GumbelIsFiniteAtBothEnds) {
  EXPECT_TRUE(std::isfinite(gumbel(0)));
  EXPECT_TRUE(std::isfinite(gumbel(0xffffffffu)));
}

TEST(Units, Bytes) {
  EXPECT_EQ(parse_bytes("12GiB"), std::int64_t{12} << 30);
  EXPECT_EQ(parse_bytes("512 MiB"), std::int64_t{512} << 20);
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("12GB"), std::nullopt);
  EXPECT_EQ(parse_bytes("-1KiB"), std::nullopt);
  EXPECT_EQ(parse_bytes(""), std::nullopt);
  EXPECT_EQ(parse_bytes("1e30GiB"), std::nullopt);
}

TEST(Units, Durations) {
  EXPECT_EQ(parse_duration_s("60s"), 60.0);
  EXPECT_EQ(parse_duration_s("250ms"), 0.25);
  EXPECT_EQ(parse_duration_s("2h"), 7200.0);
  EXPECT_EQ(parse_duration_s("60"), std::nullopt);
}

TEST(Hash, Sha256KnownAnswer) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(ErrorText, NamesWhatWhereExpectedRemedy) {
  const Error e(ExitCode::kPrompts, {"duplicate id 'a'", "p.jsonl:3", "unique ids", "rename one"});
  EXPECT_STREQ(e.what(), "p.jsonl:3: duplicate id 'a'; expected unique ids; rename one");
  EXPECT_EQ(static_cast<int>(e.code()), 3);
}

TEST(TensorView, RefusesTooManyRows) {
  float x[6];
  const TensorView v(x, DType::kF32, {2, 3});
  EXPECT_EQ(v.numel(), 6);
  EXPECT_EQ(v.first_rows(1).numel(), 3);
  EXPECT_THROW(v.first_rows(3), Error);
}

}  // namespace
}  // namespace tandem
