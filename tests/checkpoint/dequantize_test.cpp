// Each format against its formula, written out here in double precision.
#include "checkpoint/dequantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "tests/checkpoint/builder.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::make_tensor;
using testing::OwnedTensor;
using testing::TempDir;

// One rounding a product, at most two products.
constexpr double kTolerance = 3 * 0x1p-24;

double e4m3(int code) {
  const int e = code >> 3 & 15;
  const int m = code & 7;
  const double v = e == 0 ? m * std::pow(2.0, -9) : (1 + m / 8.0) * std::pow(2.0, e - 7);
  return code & 128 ? -v : v;
}

double e2m1(int code) {
  const double magnitude[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -magnitude[code & 7] : magnitude[code & 7];
}

class Random {
 public:
  std::vector<std::uint8_t> e4m3_codes(std::int64_t n) {
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(n));
    for (auto& c : codes) {
      do c = static_cast<std::uint8_t>(engine_());
      while ((c & 0x7f) == 0x7f);
    }
    return codes;
  }
  std::vector<std::uint8_t> bytes(std::int64_t n) {
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(n));
    for (auto& c : codes) c = static_cast<std::uint8_t>(engine_());
    return codes;
  }
  std::vector<float> scales(std::int64_t n) {
    std::vector<float> values(static_cast<std::size_t>(n));
    for (auto& v : values) v = std::uniform_real_distribution<float>(0.001f, 0.1f)(engine_);
    return values;
  }

 private:
  std::mt19937 engine_{7};
};

LoadedWeight load(const std::vector<OwnedTensor>& tensors) {
  TempDir dir;
  testing::write_side_files(dir.path());
  testing::write_tensors(dir / "model.safetensors", tensors);
  const auto checkpoint = Checkpoint::open(dir.path());
  const auto formats = read_weight_formats(checkpoint);
  TANDEM_CHECK(formats.weights.size() == 1);
  return load_weight(checkpoint, formats.weights.front());
}

void expect_values(const LoadedWeight& loaded,
                   const std::function<double(std::int64_t, std::int64_t)>& expected) {
  const auto& w = loaded.view;
  std::vector<float> out(static_cast<std::size_t>(w.rows * w.cols));
  dequantize_rows(w, 0, w.rows, out.data());
  for (std::int64_t n = 0; n < w.rows; ++n) {
    for (std::int64_t k = 0; k < w.cols; ++k) {
      const double want = expected(n, k);
      ASSERT_NEAR(out[static_cast<std::size_t>(n * w.cols + k)], want, kTolerance * std::abs(want))
          << "row " << n << " column " << k;
    }
  }
  // A middle part is the same as the part of the whole.
  if (w.rows < 3) return;
  std::vector<float> part(static_cast<std::size_t>((w.rows - 2) * w.cols));
  dequantize_rows(w, 1, w.rows - 1, part.data());
  for (std::size_t i = 0; i < part.size(); ++i) {
    ASSERT_EQ(part[i], out[i + static_cast<std::size_t>(w.cols)]);
  }
}

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

TEST(Dequantize, BlockFp8WithPartialEdgesAndBf16Scales) {
  Random random;
  const auto codes = random.e4m3_codes(200 * 300);
  std::vector<bf16> scales;
  for (const float s : random.scales(6)) scales.push_back(to_bf16(s));
  expect_values(load({make_tensor("a.weight", DType::kF8E4M3, {200, 300}, codes),
                      make_tensor("a.weight_scale_inv", DType::kBF16, {2, 3}, scales)}),
                [&](std::int64_t n, std::int64_t k) {
                  return e4m3(codes[at(n * 300 + k)]) *
                         double{to_float(scales[at(n / 128 * 3 + k / 128)])};
                });
}

TEST(Dequantize, BlockFp8WithE8m0Scales) {
  Random random;
  const auto codes = random.e4m3_codes(130 * 128);
  const std::vector<std::uint8_t> scales{120, 131};
  expect_values(load({make_tensor("a.weight", DType::kF8E4M3, {130, 128}, codes),
                      make_tensor("a.scale", DType::kF8E8M0, {2, 1}, scales)}),
                [&](std::int64_t n, std::int64_t k) {
                  return e4m3(codes[at(n * 128 + k)]) * std::pow(2.0, scales[at(n / 128)] - 127);
                });
}

TEST(Dequantize, StackedBlockFp8RestartsItsBlocksInEachMatrix) {
  Random random;
  const auto codes = random.e4m3_codes(2 * 160 * 128);
  const auto scales = random.scales(4);
  expect_values(load({make_tensor("e", DType::kF8E4M3, {2, 160, 128}, codes),
                      make_tensor("e_scale_inv", DType::kF32, {2, 2, 1}, scales)}),
                [&](std::int64_t n, std::int64_t k) {
                  return e4m3(codes[at(n * 128 + k)]) *
                         double{scales[at(n / 160 * 2 + n % 160 / 128)]};
                });
}

TEST(Dequantize, Fp8TensorAndChannel) {
  Random random;
  const auto codes = random.e4m3_codes(7 * 5);
  const auto scales = random.scales(7);
  expect_values(load({make_tensor("a.weight", DType::kF8E4M3, {7, 5}, codes),
                      make_tensor("a.weight_scale", DType::kF32, {}, std::vector<float>{0.25f})}),
                [&](std::int64_t n, std::int64_t k) { return e4m3(codes[at(n * 5 + k)]) * 0.25; });
  expect_values(load({make_tensor("a.weight", DType::kF8E4M3, {7, 5}, codes),
                      make_tensor("a.weight_scale", DType::kF32, {7, 1}, scales)}),
                [&](std::int64_t n, std::int64_t k) {
                  return e4m3(codes[at(n * 5 + k)]) * double{scales[at(n)]};
                });
}

TEST(Dequantize, Nvfp4InBothConventions) {
  Random random;
  const auto codes = random.bytes(5 * 24);
  std::vector<std::uint8_t> scales = random.e4m3_codes(5 * 3);
  for (auto& s : scales) s = static_cast<std::uint8_t>((s & 0x7f) | 1);
  for (auto& s : scales) s = s == 0x7f ? 0x7e : s;
  const float global = 0x1p-9f;
  const auto expected = [&](std::int64_t n, std::int64_t k) {
    const int pair = codes[at(n * 24 + k / 2)];
    return e2m1(k % 2 == 0 ? pair & 15 : pair >> 4) * e4m3(scales[at(n * 3 + k / 16)]) *
           double{global};
  };
  expect_values(
      load({make_tensor("a.weight", DType::kU8, {5, 24}, codes),
            make_tensor("a.weight_scale", DType::kF8E4M3, {5, 3}, scales),
            make_tensor("a.weight_scale_2", DType::kF32, {}, std::vector<float>{global})}),
      expected);
  expect_values(load({make_tensor("a.weight_packed", DType::kU8, {5, 24}, codes),
                      make_tensor("a.weight_scale", DType::kF8E4M3, {5, 3}, scales),
                      make_tensor("a.weight_global_scale", DType::kF32, {1},
                                  std::vector<float>{1 / global})}),
                expected);
}

TEST(Dequantize, Mxfp4) {
  Random random;
  const auto codes = random.bytes(3 * 32);
  const std::vector<std::uint8_t> scales{127, 120, 0, 130, 1, 125};
  expect_values(load({make_tensor("a.weight_packed", DType::kU8, {3, 32}, codes),
                      make_tensor("a.weight_scale", DType::kU8, {3, 2}, scales)}),
                [&](std::int64_t n, std::int64_t k) {
                  const int pair = codes[at(n * 32 + k / 2)];
                  return e2m1(k % 2 == 0 ? pair & 15 : pair >> 4) *
                         std::pow(2.0, scales[at(n * 2 + k / 32)] - 127);
                });
}

TEST(Dequantize, Int8ChannelAndGroups) {
  Random random;
  const auto codes = random.bytes(4 * 64);
  const auto code = [&](std::int64_t i) {
    return static_cast<double>(static_cast<std::int8_t>(codes[at(i)]));
  };
  const auto scales = random.scales(4);
  expect_values(
      load({make_tensor("a.weight", DType::kI8, {4, 64}, codes),
            make_tensor("a.weight_scale", DType::kF32, {4, 1}, scales)}),
      [&](std::int64_t n, std::int64_t k) { return code(n * 64 + k) * double{scales[at(n)]}; });
  // Q8_0: groups of 32 with an F16 scale; 0x2000 + i is 2^-7 * (1 + i / 1024).
  std::vector<std::uint16_t> halves;
  for (int i = 0; i < 8; ++i) halves.push_back(static_cast<std::uint16_t>(0x2000 + i));
  expect_values(load({make_tensor("a.weight", DType::kI8, {4, 64}, codes),
                      make_tensor("a.weight_scale", DType::kF16, {4, 2}, halves)}),
                [&](std::int64_t n, std::int64_t k) {
                  return code(n * 64 + k) * std::pow(2.0, -7) *
                         (1 + static_cast<double>(n * 2 + k / 32) / 1024);
                });
}

std::string fault_of(const std::vector<OwnedTensor>& tensors) {
  return testing::error_of([&] { load(tensors); });
}

TEST(Dequantize, UnusableWeightsAndScalesNameTheTensor) {
  const std::vector<std::uint8_t> zeros(16, 0);
  const auto weight = make_tensor("a.weight", DType::kF8E4M3, {4, 4}, zeros);
  const auto with_scale = [&](float s) {
    return fault_of(
        {weight, make_tensor("a.weight_scale", DType::kF32, {}, std::vector<float>{s})});
  };
  EXPECT_THAT(with_scale(1.0f), IsEmpty());
  EXPECT_THAT(with_scale(NAN), HasSubstr("a.weight: scale [0, 0] is nan"));
  EXPECT_THAT(with_scale(INFINITY), HasSubstr("a.weight: scale [0, 0] is inf"));
  EXPECT_THAT(with_scale(0.0f), HasSubstr("scale [0, 0] is 0"));
  EXPECT_THAT(with_scale(-1.0f), HasSubstr("scale [0, 0] is -1"));

  auto codes = zeros;
  codes[6] = 0x7f;
  EXPECT_THAT(fault_of({make_tensor("a.weight", DType::kF8E4M3, {4, 4}, codes),
                        make_tensor("a.weight_scale", DType::kF32, {}, std::vector<float>{1})}),
              HasSubstr("a.weight: weight [1, 2] is nan"));
  EXPECT_THAT(fault_of({make_tensor("a.weight", DType::kBF16, {1, 2},
                                    std::vector<bf16>{bf16{0}, bf16{0x7fc0}})}),
              HasSubstr("a.weight: weight [0, 1] is nan"));
  EXPECT_THAT(
      fault_of({make_tensor("a.weight_packed", DType::kU8, {1, 16}, zeros),
                make_tensor("a.weight_scale", DType::kU8, {1, 1}, std::vector<std::uint8_t>{255})}),
      HasSubstr("scale [0, 0] is nan"));
}

TEST(Dequantize, Nvfp4ScalesAreChecked) {
  const auto fault = [](std::uint8_t block_scale, float global, const char* global_name) {
    const std::vector<std::uint8_t> codes(8, 0);
    return fault_of({make_tensor("a.weight", DType::kU8, {1, 8}, codes),
                     make_tensor("a.weight_scale", DType::kF8E4M3, {1, 1},
                                 std::vector<std::uint8_t>{block_scale}),
                     make_tensor(global_name, DType::kF32, {}, std::vector<float>{global})});
  };
  EXPECT_THAT(fault(0x38, 0.001f, "a.weight_scale_2"), IsEmpty());
  EXPECT_THAT(fault(0x00, 0.001f, "a.weight_scale_2"), IsEmpty());  // an all-zero block
  EXPECT_THAT(fault(0x80, 0.001f, "a.weight_scale_2"), HasSubstr("scale [0, 0] is -0"));
  EXPECT_THAT(fault(0xb8, 0.001f, "a.weight_scale_2"), HasSubstr("scale [0, 0] is -1"));
  EXPECT_THAT(fault(0x38, 1000.0f, "a.weight_scale_2"), HasSubstr("is it the reciprocal?"));
  EXPECT_THAT(fault(0x38, 0.001f, "a.weight_global_scale"), HasSubstr("is it the reciprocal?"));
  EXPECT_THAT(fault(0x38, 0.0f, "a.weight_global_scale"), HasSubstr("second-level scale is inf"));
}

}  // namespace
}  // namespace tandem
