// The norm of a row by kNormThreads threads. Thread t owns the elements 4t to 4t + 3 of every
// 4 kNormThreads, and adds their squares in ascending order; warps add their threads' sums, and the
// warps' sums are added in ascending order.
//
// Such a row is all latency: loads are wide and all under way together, and the code is short,
// because instructions that run once a layer come from memory, too.
#pragma once

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/rms_norm_rows.h"
#include "kernels/ops/rms_norm.h"

namespace tandem::cuda {

inline constexpr int kNormThreads = kNormWarps * kWarp;
inline constexpr int kNormStep = kNormThreads * kNormGroup;

// Of each thread's groups so many stay in registers between the two passes.
inline constexpr int kNormHeld = 5;

struct Four {
  float of[kNormGroup] = {};
};

// kWide: rows are whole groups, and lie where those can be loaded at once. Elements beyond `width`
// are zeros.
template <bool kWide>
struct RowAccess {
  template <class T>
  static __device__ __forceinline__ Four load(const T* row, int i, int width) {
    Four v;
    if constexpr (!kWide) {
#pragma unroll
      for (int j = 0; j < kNormGroup; ++j) {
        if (i + j < width) v.of[j] = load_float(row + i + j);
      }
    } else if (i < width) {
      // Past the first-level cache: other blocks may have written them in this kernel.
      if constexpr (sizeof(T) == sizeof(float)) {
        const float4 x = __ldcg(reinterpret_cast<const float4*>(row + i));
        v = {{x.x, x.y, x.z, x.w}};
      } else {
        v = unpacked(__ldcg(reinterpret_cast<const uint2*>(row + i)));
      }
    }
    return v;
  }

  // Returns what a load would now give.
  static __device__ __forceinline__ Four store(const Four& v, float* row, int i, int width) {
    if constexpr (!kWide) {
      store_each(v, row, i, width);
    } else if (i < width) {
      *reinterpret_cast<float4*>(row + i) = make_float4(v.of[0], v.of[1], v.of[2], v.of[3]);
    }
    return v;
  }
  static __device__ __forceinline__ Four store(const Four& v, bf16* row, int i, int width) {
    const uint2 packed = {round_pair(v.of[0], v.of[1]), round_pair(v.of[2], v.of[3])};
    const Four rounded = unpacked(packed);
    if constexpr (!kWide) {
      store_each(rounded, row, i, width);
    } else if (i < width) {
      *reinterpret_cast<uint2*>(row + i) = packed;
    }
    return rounded;
  }

 private:
  static __device__ __forceinline__ Four unpacked(uint2 x) {
    return {{low_bf16(x.x), high_bf16(x.x), low_bf16(x.y), high_bf16(x.y)}};
  }
  template <class T>
  static __device__ __forceinline__ void store_each(const Four& v, T* row, int i, int width) {
#pragma unroll
    for (int j = 0; j < kNormGroup; ++j) {
      if (i + j < width) store_float(v.of[j], row + i + j);
    }
  }
};

// A thread's groups that are held.
struct HeldGroups {
  Four of[kNormHeld];
};

__device__ __forceinline__ int held_element(int n) {
  return static_cast<int>(threadIdx.x) * kNormGroup + n * kNormStep;
}

// What the elements are multiplied with. No kernel writes it: it is there before the row is.
template <bool kWide>
__device__ __forceinline__ HeldGroups held_weight(const float* weight, int width) {
  HeldGroups held;
#pragma unroll
  for (int n = 0; n < kNormHeld; ++n) {
    held.of[n] = RowAccess<kWide>::load(weight, held_element(n), width);
  }
  return held;
}

__device__ __forceinline__ void add_squares(const Four& v, float& squares) {
#pragma unroll
  for (int j = 0; j < kNormGroup; ++j) squares = fmaf(v.of[j], v.of[j], squares);
}

// A row's factor, from its held groups and those that read(i) gives in ascending order. `sums`:
// [kNormWarps] in shared memory, which nobody reads any more; sync() is a barrier of the threads.
template <class Read, class Sync>
__device__ __forceinline__ float row_factor(const HeldGroups& x, int width, float eps,
                                            const Read& read, float* sums, const Sync& sync) {
  float squares = 0;
#pragma unroll
  for (int n = 0; n < kNormHeld; ++n) add_squares(x.of[n], squares);
#pragma unroll 1
  for (int i = held_element(kNormHeld); i < width; i += kNormStep) add_squares(read(i), squares);
  squares = warp_sum(squares);
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = squares;
  sync();
  float sum = sums[0];
#pragma unroll
  for (int w = 1; w < kNormWarps; ++w) sum += sums[w];
  return 1.0f / sqrtf(sum / static_cast<float>(width) + eps);
}

// The norm of a row, of which x are the held groups. The others come from read(i), in ascending
// order, and once more from reread(i). By a block; `sums` as above. `factor`: nullptr, or where the
// row's factor goes, which y is then without.
template <bool kWide, class TY, class Read, class Reread>
__device__ __forceinline__ void norm_row(const HeldGroups& x, const HeldGroups& held,
                                         const float* weight, int width, float eps, float offset,
                                         TY* y, float* factor, const Read& read,
                                         const Reread& reread, float* sums) {
  float scale = row_factor(x, width, eps, read, sums, [] { __syncthreads(); });
  if (factor != nullptr) {
    if (threadIdx.x == 0) *factor = scale;
    scale = 1.0f;
  }
  const auto write = [&](const Four& v, const Four& w, int i) {
    Four out;
#pragma unroll
    for (int j = 0; j < kNormGroup; ++j) out.of[j] = v.of[j] * scale * (offset + w.of[j]);
    RowAccess<kWide>::store(out, y, i, width);
  };
#pragma unroll
  for (int n = 0; n < kNormHeld; ++n) write(x.of[n], held.of[n], held_element(n));
#pragma unroll 1
  for (int i = held_element(kNormHeld); i < width; i += kNormStep) {
    write(reread(i), RowAccess<kWide>::load(weight, i, width), i);
  }
}

// Folds `delta` into a row of the residual stream and norms it.
template <bool kWide, class T>
__device__ __forceinline__ void residual_norm_row(const ops::ResidualRmsNormArgs& a, int row,
                                                  const HeldGroups& held, float* sums) {
  using Access = RowAccess<kWide>;
  const std::int64_t first = std::int64_t{row} * a.width;
  const int width = a.width;
  T* residual = static_cast<T*>(a.residual) + first;
  const float* delta = a.delta + first;
  const bool add = a.update == ops::ResidualUpdate::kAdd;
  const auto update = [&](const Four& old, Four more, int i) {
    if (add) {
#pragma unroll
      for (int j = 0; j < kNormGroup; ++j) more.of[j] = old.of[j] + more.of[j];
    }
    return Access::store(more, residual, i, width);
  };
  HeldGroups old, values;
#pragma unroll
  for (int n = 0; n < kNormHeld; ++n) {
    if (add) old.of[n] = Access::load(residual, held_element(n), width);
    values.of[n] = Access::load(delta, held_element(n), width);
  }
#pragma unroll
  for (int n = 0; n < kNormHeld; ++n) {
    values.of[n] = update(old.of[n], values.of[n], held_element(n));
  }
  norm_row<kWide>(
      values, held, a.weight, width, a.eps, 1.0f, static_cast<T*>(a.y) + first,
      a.row_factors == nullptr ? nullptr : a.row_factors + row,
      [&](int i) {
        return update(add ? Access::load(residual, i, width) : Four{},
                      Access::load(delta, i, width), i);
      },
      [&](int i) { return Access::load(residual, i, width); }, sums);
}

}  // namespace tandem::cuda
