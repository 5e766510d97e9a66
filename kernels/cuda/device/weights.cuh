// Reading weight matrices of every format. For the matrix units: eight neighbouring codes as bf16,
// exactly; what does not fit into bf16 exactly (scales with more digits) is left to be applied to
// sums. For plain fp32 kernels: one value.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "base/types.h"
#include "kernels/cuda/device/e2m1.cuh"
#include "kernels/cuda/device/e4m3.cuh"
#include "kernels/cuda/device/e4m3_words.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/linear_plan.h"
#include "kernels/ops/linear.h"

namespace tandem::cuda {

// Weights are read once a step and fill no cache; neighbours in a line follow at once.
__device__ __forceinline__ uint4 load_once(const uint8_t* p) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p));
  return v;
}

__device__ __forceinline__ float e4m3_value(uint8_t code) {
  return __uint_as_float(pair_of_codes(uint32_t{code} << 8) << 16);
}

__device__ __forceinline__ float e8m0_value(uint8_t code) {
  return to_float(bf16{static_cast<uint16_t>(code == 0 ? 0x40u : uint32_t{code} << 7)});
}

__device__ inline float scale_value(const void* scales, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(scales)[i];
    case DType::kBF16:
      return to_float(static_cast<const bf16*>(scales)[i]);
    case DType::kF16:
      return __half2float(static_cast<const __half*>(scales)[i]);
    case DType::kF8E4M3:
      return e4m3_value(static_cast<const uint8_t*>(scales)[i]);
    default:
      return e8m0_value(static_cast<const uint8_t*>(scales)[i]);
  }
}

// The factor of an output's sum where there is one for all columns.
template <ops::WeightFormat kFormat>
__device__ __forceinline__ float sum_factor(const ops::LinearWeight& w, int64_t out) {
  switch (kFormat) {
    case ops::WeightFormat::kFp8Channel:
    case ops::WeightFormat::kInt8Channel:
      return scale_value(w.scales, w.scale_dtype, out);
    case ops::WeightFormat::kFp8Tensor:
    case ops::WeightFormat::kNvfp4:
      return w.scale_2;
    default:
      return 1.0f;
  }
}

// The scale over (row, column) of a format that has block, group or channel scales.
__device__ inline float scale_at(const ops::LinearWeight& w, int64_t row, int64_t column) {
  if (w.format == ops::WeightFormat::kFp8Channel || w.format == ops::WeightFormat::kInt8Channel) {
    return scale_value(w.scales, w.scale_dtype, row);
  }
  const int64_t per_row = (w.in_features + w.block_cols - 1) / w.block_cols;
  return scale_value(w.scales, w.scale_dtype, row / w.block_rows * per_row + column / w.block_cols);
}

// kFormat's rows for the matrix units, 16 bytes a lane and load:
//   kGroups              groups of eight columns in 16 bytes
//   row(w, n)            where output n's codes begin
//   address(row, k)      of the code of column k
//   Scales, scales(...)  what the codes of one load need besides
//   Factors, factors()   the same, decoded
//   columns(...)         group j as bf16
//   kSumFactor           what the sums of products are to be multiplied with on top of their scale
struct NoScales {};

template <ops::WeightFormat kFormat>
struct WeightRows;

template <>
struct WeightRows<ops::WeightFormat::kBf16> {
  static constexpr int kGroups = 1;
  static constexpr float kSumFactor = 1.0f;
  using Scales = NoScales;
  using Factors = NoScales;
  static __device__ const uint8_t* row(const ops::LinearWeight& w, int64_t n) {
    return static_cast<const uint8_t*>(w.data) + n * w.in_features * 2;
  }
  static __device__ __forceinline__ const uint8_t* address(const uint8_t* row, int64_t k) {
    return row + k * 2;
  }
  static __device__ __forceinline__ Scales scales(const uint8_t*, int64_t) { return {}; }
  static __device__ __forceinline__ Factors factors(Scales, int) { return {}; }
  static __device__ __forceinline__ Columns8 columns(const uint4& raw, Factors, int) {
    return {{raw.x, raw.y, raw.z, raw.w}};
  }
};

__device__ __forceinline__ uint32_t word_of(const uint4& raw, int i) {
  return i == 0 ? raw.x : i == 1 ? raw.y : i == 2 ? raw.z : raw.w;
}

// Codes of one byte; their scales are applied to sums.
struct ByteRows {
  static constexpr int kGroups = 2;
  static constexpr float kSumFactor = 1.0f;
  using Scales = NoScales;
  using Factors = NoScales;
  static __device__ const uint8_t* row(const ops::LinearWeight& w, int64_t n) {
    return static_cast<const uint8_t*>(w.data) + n * w.in_features;
  }
  static __device__ __forceinline__ const uint8_t* address(const uint8_t* row, int64_t k) {
    return row + k;
  }
  static __device__ __forceinline__ Scales scales(const uint8_t*, int64_t) { return {}; }
  static __device__ __forceinline__ Factors factors(Scales, int) { return {}; }
};

// Prepacked.
struct E4m3Rows : ByteRows {
  static __device__ __forceinline__ uint32_t decoded(uint32_t word, int p) {
    return multiply_pairs(e4m3_pair(word, p), kE4m3Bias);
  }
  static __device__ __forceinline__ Columns8 columns(const uint4& raw, Factors, int j) {
    const uint32_t lower = word_of(raw, 2 * j), upper = word_of(raw, 2 * j + 1);
    return {{decoded(lower, 0), decoded(lower, 1), decoded(upper, 0), decoded(upper, 1)}};
  }
};

struct Int8Rows : ByteRows {
  // Byte i of a word of codes + 128, as fp32: the bits of 2^23 + code, minus 2^23 + 128.
  static __device__ __forceinline__ float value(uint32_t shifted, uint32_t selector) {
    return __uint_as_float(__byte_perm(shifted, 0x4b000000u, selector)) - 8388736.0f;
  }
  static __device__ __forceinline__ Columns8 columns(const uint4& raw, Factors, int j) {
    const uint32_t x = word_of(raw, 2 * j) ^ 0x80808080u;
    const uint32_t y = word_of(raw, 2 * j + 1) ^ 0x80808080u;
    return {{round_pair(value(x, 0x7440), value(x, 0x7441)),
             round_pair(value(x, 0x7442), value(x, 0x7443)),
             round_pair(value(y, 0x7440), value(y, 0x7441)),
             round_pair(value(y, 0x7442), value(y, 0x7443))}};
  }
};

template <>
struct WeightRows<ops::WeightFormat::kFp8Block> : E4m3Rows {};
template <>
struct WeightRows<ops::WeightFormat::kFp8Channel> : E4m3Rows {};
template <>
struct WeightRows<ops::WeightFormat::kFp8Tensor> : E4m3Rows {};
template <>
struct WeightRows<ops::WeightFormat::kInt8Group> : Int8Rows {};
template <>
struct WeightRows<ops::WeightFormat::kInt8Channel> : Int8Rows {};

// Codes of four bits with a scale for every kBlock columns, prepacked. A scale of E4M3 or E8M0 has
// so few digits that code times scale is exact in bf16. The codes come out as 2^-126 of their
// values; the factors make up for 100 of it, so that no scale overflows, and the sums for the rest.
template <bool kE8m0, int kBlock>
struct NibbleRows {
  static constexpr int kGroups = 4;
  static constexpr float kSumFactor = 0x1p26f;
  static constexpr int kScales = kGroups * 8 / kBlock;
  using Scales = uint32_t;  // kScales bytes
  struct Factors {
    uint32_t of[kScales];  // scale * 2^100 in both halves of a pair
  };
  static __device__ const uint8_t* row(const ops::LinearWeight& w, int64_t n) {
    return static_cast<const uint8_t*>(w.data) + n * (w.in_features / 2);
  }
  static __device__ const uint8_t* scale_row(const ops::LinearWeight& w, int64_t n) {
    return static_cast<const uint8_t*>(w.scales) + n * (w.in_features / kBlock);
  }
  static __device__ __forceinline__ const uint8_t* address(const uint8_t* row, int64_t k) {
    return row + k / 2;
  }
  static __device__ __forceinline__ Scales scales(const uint8_t* scale_row, int64_t k) {
    if constexpr (kBlock == 16) return __ldg(reinterpret_cast<const uint16_t*>(scale_row + k / 16));
    return __ldg(scale_row + k / kBlock);
  }
  // In the order of groups that begins with `first_group`.
  static __device__ __forceinline__ Factors factors(Scales scales, int first_group) {
    if constexpr (kE8m0) {
      constexpr uint32_t kTwoTo100 = 0x71807180u;
      const uint32_t both = scales == 0 ? 0x00400040u : scales * 0x00800080u;
      return {{multiply_pairs(both, kTwoTo100)}};
    } else {
      // As pair_of_codes() has them, 2^-120 of the values; two steps, since 2^220 is no bf16.
      constexpr uint32_t kTwoTo110 = 0x76807680u;
      const uint32_t codes = __byte_perm(scales, 0, first_group == 0 ? 0x1404 : 0x0414);
      const uint32_t bits = (codes & 0x80008000u) | (codes >> 4 & 0x07f007f0u);
      const uint32_t both = multiply_pairs(multiply_pairs(bits, kTwoTo110), kTwoTo110);
      return {{__byte_perm(both, 0, 0x1010), __byte_perm(both, 0, 0x3232)}};
    }
  }
  static __device__ __forceinline__ Columns8 columns(const uint4& raw, const Factors& factors,
                                                     int j) {
    const uint32_t w = word_of(raw, j), factor = factors.of[8 * j / kBlock];
    return {{multiply_pairs(e2m1_pair(w, 0), factor), multiply_pairs(e2m1_pair(w, 1), factor),
             multiply_pairs(e2m1_pair(w, 2), factor), multiply_pairs(e2m1_pair(w, 3), factor)}};
  }
};

template <>
struct WeightRows<ops::WeightFormat::kNvfp4> : NibbleRows<false, 16> {};
template <>
struct WeightRows<ops::WeightFormat::kMxfp4> : NibbleRows<true, 32> {};

// The group that lane t (device/mma.cuh) takes first of its 16 bytes of weights, and of x for them;
// the j-th is group j ^ first. With four groups the lanes' pieces of x begin 64 bytes apart: lanes
// t and t + 2 would always read from the same banks of shared memory if they took them alike.
template <class Weight>
__device__ __forceinline__ int first_group(int t) {
  return Weight::kGroups == 4 ? t & 2 : 0;
}

// The words of a load in that order.
template <class Weight>
__device__ __forceinline__ uint4 from_group(const uint4& raw, int first) {
  if constexpr (Weight::kGroups < 4) return raw;
  return first == 0 ? raw : uint4{raw.z, raw.w, raw.x, raw.y};
}

// Codes of a 32-bit word of a format that is prepacked.
__host__ __device__ constexpr int codes_of_word(ops::WeightFormat format) {
  return is_nibble(format) ? 8 : 4;
}

// Codes that fill no whole word at the end of a weight stay as they are stored.
__host__ __device__ constexpr int64_t prepacked_words(const ops::LinearWeight& w) {
  return w.out_features * w.in_features / codes_of_word(w.format);
}

__host__ __device__ constexpr uint32_t prepacked_word(ops::WeightFormat format, uint32_t codes) {
  return is_nibble(format) ? prepacked_e2m1(codes) : prepacked_e4m3(codes);
}

// The value of code i of a prepacked weight, without its scales.
__device__ inline float code_value(const ops::LinearWeight& w, int64_t i) {
  const bool nibble = is_nibble(w.format);
  const int of_word = codes_of_word(w.format);
  const int64_t word = i / of_word;
  const int place = static_cast<int>(i % of_word);
  uint32_t codes = 0;
  if (word < prepacked_words(w)) {
    codes = static_cast<const uint32_t*>(w.data)[word];
  } else {
    const int byte = nibble ? place / 2 : place;
    const int64_t at = word * 4 + byte;
    codes =
        prepacked_word(w.format, uint32_t{static_cast<const uint8_t*>(w.data)[at]} << (byte * 8));
  }
  const uint32_t pair = nibble ? e2m1_pair(codes, place / 2) : e4m3_pair(codes, place / 2);
  const float bits = place % 2 == 0 ? low_bf16(pair) : high_bf16(pair);
  return bits * (nibble ? 0x1p126f : 0x1p120f);
}

// One value, for plain kernels.
__device__ inline float weight_value(const ops::LinearWeight& w, int64_t row, int64_t k) {
  const int64_t i = row * w.in_features + k;
  switch (w.format) {
    case ops::WeightFormat::kF32:
      return static_cast<const float*>(w.data)[i];
    case ops::WeightFormat::kBf16:
      return to_float(static_cast<const bf16*>(w.data)[i]);
    case ops::WeightFormat::kFp8Tensor:
      return code_value(w, i) * w.scale_2;
    case ops::WeightFormat::kFp8Block:
    case ops::WeightFormat::kFp8Channel:
      return code_value(w, i) * scale_at(w, row, k);
    case ops::WeightFormat::kInt8Channel:
    case ops::WeightFormat::kInt8Group:
      return static_cast<float>(static_cast<const int8_t*>(w.data)[i]) * scale_at(w, row, k);
    case ops::WeightFormat::kNvfp4:
    case ops::WeightFormat::kMxfp4: {
      const float factor = w.format == ops::WeightFormat::kNvfp4 ? w.scale_2 : 1.0f;
      return code_value(w, i) * (scale_at(w, row, k) * factor);
    }
  }
  return 0.0f;
}

}  // namespace tandem::cuda
