// Element types and their conversions. Names follow safetensors' dtype strings.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem {

enum class DType : std::uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool,
};

// Bytes of one element. NVFP4 and MXFP4 codes are stored as kU8/kI8, two a byte.
constexpr std::size_t dtype_bytes(DType t) {
  switch (t) {
    case DType::kF64:
    case DType::kI64:
    case DType::kU64:
      return 8;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16:
    case DType::kU16:
      return 2;
    default:
      return 1;
  }
}

// "BF16", "F8_E4M3", ... as written in safetensors headers.
std::string_view dtype_name(DType t);

// bfloat16 is the upper half of a binary32.
struct bf16 {
  std::uint16_t bits = 0;
};

constexpr float to_float(bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }
constexpr float to_float(float x) { return x; }

// Round to nearest, ties to even; NaN stays NaN (quiet).
constexpr bf16 to_bf16(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{static_cast<std::uint16_t>((u >> 16) | 0x40u)};
  return bf16{static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

float f16_to_float(std::uint16_t bits);

// FP8 E4M3FN (OCP): bias 7, max 448, 0x7f/0xff NaN, no infinity.
struct e4m3 {
  std::uint8_t code = 0;
};

inline constexpr float kE4m3Max = 448.0f;

constexpr float to_float(e4m3 x) {
  const std::uint32_t sign = (x.code & 0x80u) << 24;
  const std::uint32_t magnitude = x.code & 0x7fu;
  if (magnitude == 0x7fu) return std::bit_cast<float>(sign | 0x7fc00000u);
  // Exponent and mantissa land in binary32's fields; the product moves the bias from 7 to 127.
  const float value = std::bit_cast<float>(magnitude << 20) * 0x1p120f;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
}

float e4m3_to_float(std::uint8_t code);

// Round to nearest, ties to even; beyond 448 it saturates; NaN stays NaN.
constexpr e4m3 to_e4m3(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t code = 0;
  if (magnitude > 0x7f800000u) {
    code = 0x7fu;
  } else if (magnitude >= std::bit_cast<std::uint32_t>(kE4m3Max)) {
    code = 0x7eu;
  } else if (magnitude < std::bit_cast<std::uint32_t>(0x1p-6f)) {
    // Subnormal codes are multiples of 2^-9, to which a sum with 2^14 rounds.
    const float sum = std::bit_cast<float>(magnitude) + 0x1p14f;
    code = std::bit_cast<std::uint32_t>(sum) - std::bit_cast<std::uint32_t>(0x1p14f);
  } else {
    // Drops 20 bits of the mantissa and moves the exponent's bias from 127 to 7.
    code = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  }
  return e4m3{static_cast<std::uint8_t>(sign | code)};
}
// E8M0: 2^(code-127); 255 is NaN.
float e8m0_to_float(std::uint8_t code);
// E2M1 magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6; bit 3 is the sign. Uses the low nibble.
float e2m1_to_float(std::uint8_t nibble);

}  // namespace tandem
