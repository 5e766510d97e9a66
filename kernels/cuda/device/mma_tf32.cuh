// fp32 products on the matrix units: every number is split into two TF32 numbers, and of the four
// products of the parts the three that matter are added.
//
// m16n8k8 multiplies A [16, 8] by B [8, 8]. Lane (g, t) = (lane / 4, lane % 4) holds of A rows g
// and g + 8, of B column g, and of each the k indices t and t + 4; of the product, rows g and g + 8
// at columns 2t and 2t + 1. As in mma.cuh, which element is which k is free while A and B agree.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tandem::cuda {

// x = high + low up to 2^-21 |x|. TF32 keeps 10 bits behind the point.
struct Tf32Pair {
  uint32_t high = 0, low = 0;
};

inline constexpr uint32_t kTf32Mask = 0xffffe000u;

// The high part is rounded to nearest. A NaN may leave it as a number, but never the low part.
__device__ __forceinline__ Tf32Pair split_tf32(float x) {
  const uint32_t high = (__float_as_uint(x) + 0x1000u) & kTf32Mask;
  return {high, __float_as_uint(x - __uint_as_float(high)) & kTf32Mask};
}

// sums[0..1]: row g, columns 2t, 2t+1 of the product; sums[2..3]: row g + 8.
__device__ __forceinline__ void mma_m16n8k8(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                            uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// What a lane brings of A and of B to one instruction. kExact: the numbers are TF32 as they are
// (bf16 values), so they have no low part.
template <bool kExact>
struct Tf32A {
  uint32_t high[4] = {}, low[4] = {};  // (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4)

  __device__ __forceinline__ Tf32A(float x0, float x1, float x2, float x3) {
    const float x[4] = {x0, x1, x2, x3};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Tf32Pair pair = kExact ? Tf32Pair{__float_as_uint(x[i]), 0} : split_tf32(x[i]);
      high[i] = pair.high;
      low[i] = pair.low;
    }
  }
};

template <bool kExact>
struct Tf32B {
  uint32_t high[2] = {}, low[2] = {};  // t, t + 4

  __device__ __forceinline__ Tf32B(float x0, float x1) {
    const float x[2] = {x0, x1};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Tf32Pair pair = kExact ? Tf32Pair{__float_as_uint(x[i]), 0} : split_tf32(x[i]);
      high[i] = pair.high;
      low[i] = pair.low;
    }
  }
};

// sums += A B over eight k indices, small terms first.
template <bool kExactA, bool kExactB>
__device__ __forceinline__ void mma_fp32(float (&sums)[4], const Tf32A<kExactA>& a,
                                         const Tf32B<kExactB>& b) {
  if (!kExactA) {
    mma_m16n8k8(sums, a.low[0], a.low[1], a.low[2], a.low[3], b.high[0], b.high[1]);
  }
  if (!kExactB) {
    mma_m16n8k8(sums, a.high[0], a.high[1], a.high[2], a.high[3], b.low[0], b.low[1]);
  }
  mma_m16n8k8(sums, a.high[0], a.high[1], a.high[2], a.high[3], b.high[0], b.high[1]);
}

}  // namespace tandem::cuda
