// Reading weight matrices of every format. For the matrix units: eight neighbouring codes as bf16,
// exactly; what does not fit into bf16 exactly (scales with more digits) is left to be applied to
// sums. For plain fp32 kernels: one value.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "base/types.h"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/ops/linear.h"

namespace tandem::cuda {

// Weights are read once a step and fill no cache; neighbours in a line follow at once.
__device__ __forceinline__ uint4 load_once(const uint4* p) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p));
  return v;
}

// Both halves times the same power of two. bf16 multiplication keeps subnormal operands.
__device__ __forceinline__ uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  uint32_t c;
  asm("{ mul.bf16x2 %0, %1, %2; }" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// Two E4M3 codes, in the upper bytes of both halves of `codes`. Exponent and mantissa land in
// bf16's fields as they are; the product moves the bias from 7 to 127.
__device__ __forceinline__ uint32_t e4m3_pair(uint32_t codes) {
  constexpr uint32_t kTwoTo120 = 0x7b807b80u;
  return multiply_pairs((codes & 0x80008000u) | ((codes & 0x7f007f00u) >> 4), kTwoTo120);
}

__device__ __forceinline__ float e4m3_value(uint8_t code) {
  return __uint_as_float(e4m3_pair(uint32_t{code} << 8) << 16);
}

__device__ __forceinline__ float e8m0_value(uint8_t code) {
  return to_float(bf16{static_cast<uint16_t>(code == 0 ? 0x40u : uint32_t{code} << 7)});
}

// Two E2M1 codes of one byte, the lower nibble first.
__device__ __forceinline__ uint32_t e2m1_pair(uint32_t byte) {
  constexpr uint32_t kTwoTo126 = 0x7e807e80u;
  const uint32_t spread = (byte & 0xfu) | ((byte & 0xf0u) << 12);
  return multiply_pairs(((spread & 0x00080008u) << 12) | ((spread & 0x00070007u) << 6), kTwoTo126);
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

// The scale over (row, column) of a format that has block, group or channel scales.
__device__ inline float scale_at(const ops::LinearWeight& w, int64_t row, int64_t column) {
  if (w.format == ops::WeightFormat::kFp8Channel || w.format == ops::WeightFormat::kInt8Channel) {
    return scale_value(w.scales, w.scale_dtype, row);
  }
  const int64_t per_row = (w.in_features + w.block_cols - 1) / w.block_cols;
  return scale_value(w.scales, w.scale_dtype, row / w.block_rows * per_row + column / w.block_cols);
}

// kFormat's rows for the matrix units.
//   Raw              eight codes as they lie in memory
//   row(w, n)        where output n's codes begin
//   load(row, k)     codes of columns k .. k+7; k is a multiple of 8
//   columns(...)     as bf16
template <ops::WeightFormat kFormat>
struct WeightRows;

template <>
struct WeightRows<ops::WeightFormat::kBf16> {
  using Raw = uint4;
  static constexpr bool kScaledSums = false;
  static __device__ const uint8_t* row(const ops::LinearWeight& w, int64_t n) {
    return static_cast<const uint8_t*>(w.data) + n * w.in_features * 2;
  }
  static __device__ __forceinline__ Raw load(const uint8_t* row, int64_t k) {
    return load_once(reinterpret_cast<const uint4*>(row + k * 2));
  }
  static __device__ __forceinline__ Columns8 columns(const ops::LinearWeight&, const Raw& raw,
                                                     int64_t, int64_t) {
    return {{raw.x, raw.y, raw.z, raw.w}};
  }
};

// Eight codes of one byte.
struct ByteRows {
  using Raw = uint2;
  static constexpr bool kScaledSums = true;
  static __device__ const uint8_t* row(const ops::LinearWeight& w, int64_t n) {
    return static_cast<const uint8_t*>(w.data) + n * w.in_features;
  }
  static __device__ __forceinline__ Raw load(const uint8_t* row, int64_t k) {
    return __ldg(reinterpret_cast<const uint2*>(row + k));
  }
};

struct E4m3Rows : ByteRows {
  static __device__ __forceinline__ Columns8 columns(const ops::LinearWeight&, const Raw& raw,
                                                     int64_t, int64_t) {
    return {{e4m3_pair(__byte_perm(raw.x, 0, 0x1404)), e4m3_pair(__byte_perm(raw.x, 0, 0x3424)),
             e4m3_pair(__byte_perm(raw.y, 0, 0x1404)), e4m3_pair(__byte_perm(raw.y, 0, 0x3424))}};
  }
};

struct Int8Rows : ByteRows {
  // Byte i of a word of codes + 128, as fp32: the bits of 2^23 + code, minus 2^23 + 128.
  static __device__ __forceinline__ float value(uint32_t shifted, uint32_t selector) {
    return __uint_as_float(__byte_perm(shifted, 0x4b000000u, selector)) - 8388736.0f;
  }
  static __device__ __forceinline__ Columns8 columns(const ops::LinearWeight&, const Raw& raw,
                                                     int64_t, int64_t) {
    const uint32_t x = raw.x ^ 0x80808080u, y = raw.y ^ 0x80808080u;
    return {{pack_bf16(value(x, 0x7440), value(x, 0x7441)),
             pack_bf16(value(x, 0x7442), value(x, 0x7443)),
             pack_bf16(value(y, 0x7440), value(y, 0x7441)),
             pack_bf16(value(y, 0x7442), value(y, 0x7443))}};
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

// Eight codes of four bits. A block scale of E4M3 or E8M0 has so few digits that code times scale
// is exact in bf16.
template <bool kE8m0>
struct NibbleRows {
  using Raw = uint32_t;
  static constexpr bool kScaledSums = false;
  static __device__ const uint8_t* row(const ops::LinearWeight& w, int64_t n) {
    return static_cast<const uint8_t*>(w.data) + n * (w.in_features / 2);
  }
  static __device__ __forceinline__ Raw load(const uint8_t* row, int64_t k) {
    return __ldg(reinterpret_cast<const uint32_t*>(row + k / 2));
  }
  static __device__ __forceinline__ Columns8 columns(const ops::LinearWeight& w, const Raw& raw,
                                                     int64_t n, int64_t k) {
    const int64_t per_row = (w.in_features + w.block_cols - 1) / w.block_cols;
    const uint8_t code = __ldg(static_cast<const uint8_t*>(w.scales) + n / w.block_rows * per_row +
                               k / w.block_cols);
    const float scale = kE8m0 ? e8m0_value(code) : e4m3_value(code);
    const uint32_t scales = (__float_as_uint(scale) >> 16) * 0x10001u;
    return {{multiply_pairs(e2m1_pair(raw & 0xffu), scales),
             multiply_pairs(e2m1_pair((raw >> 8) & 0xffu), scales),
             multiply_pairs(e2m1_pair((raw >> 16) & 0xffu), scales),
             multiply_pairs(e2m1_pair(raw >> 24), scales)}};
  }
};

template <>
struct WeightRows<ops::WeightFormat::kNvfp4> : NibbleRows<false> {};
template <>
struct WeightRows<ops::WeightFormat::kMxfp4> : NibbleRows<true> {};

// One value, for plain kernels.
__device__ inline float weight_value(const ops::LinearWeight& w, int64_t row, int64_t k) {
  const int64_t i = row * w.in_features + k;
  switch (w.format) {
    case ops::WeightFormat::kF32:
      return static_cast<const float*>(w.data)[i];
    case ops::WeightFormat::kBf16:
      return to_float(static_cast<const bf16*>(w.data)[i]);
    case ops::WeightFormat::kFp8Tensor:
      return e4m3_value(static_cast<const uint8_t*>(w.data)[i]) * w.scale_2;
    case ops::WeightFormat::kFp8Block:
    case ops::WeightFormat::kFp8Channel:
      return e4m3_value(static_cast<const uint8_t*>(w.data)[i]) * scale_at(w, row, k);
    case ops::WeightFormat::kInt8Channel:
    case ops::WeightFormat::kInt8Group:
      return static_cast<float>(static_cast<const int8_t*>(w.data)[i]) * scale_at(w, row, k);
    case ops::WeightFormat::kNvfp4:
    case ops::WeightFormat::kMxfp4: {
      const uint8_t byte = static_cast<const uint8_t*>(w.data)[i / 2];
      const uint32_t code = k % 2 == 0 ? byte & 0xfu : byte >> 4;
      const float factor = w.format == ops::WeightFormat::kNvfp4 ? w.scale_2 : 1.0f;
      return __uint_as_float(e2m1_pair(code) << 16) * (scale_at(w, row, k) * factor);
    }
  }
  return 0.0f;
}

}  // namespace tandem::cuda
