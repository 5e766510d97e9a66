// Dot products of a few matrix rows with a few fp32 vectors at once: the inner loop of the linear
// operator, of attention scores and of the delta rule's Gram matrices.
//
// Order of summation: lane k mod 16 sums the elements k in ascending order by fused multiply-adds;
// the lanes are then reduced by the tree of reduce16(). A tail of n < 16 elements goes to lanes
// 0..n-1. The order depends on nothing but the length, so tiles of any size give the same bits, and
// a sum may be interrupted after any multiple of 16 elements by leaving its lanes in memory.
#if defined(TANDEM_KERNELS_CPU_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_KERNELS_CPU_DOT_INL_H_
#undef TANDEM_KERNELS_CPU_DOT_INL_H_
#else
#define TANDEM_KERNELS_CPU_DOT_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {

// Accumulators must stay in registers: 32 of 512 bits, 16 of 256 bits (two a virtual vector), 32 of
// 128 bits (four a virtual vector).
inline constexpr int kTileOuts = kParts == 1 ? 4 : 2;
inline constexpr int kTileRows = kParts == 1 ? 4 : 2;
// With a single x row the tile is a column: enough independent sums to hide the latency of the
// multiply-add, and as many streams from memory.
inline constexpr int kColumnOuts = kParts == 1 ? 8 : 4;

// A block of vectors to multiply by: fp32, each padded with zeros to a multiple of 16 elements.
struct DotRows {
  const float* x = nullptr;
  std::int64_t stride = 0;
  int count = 0;
};

// lanes[o][r][16] += partial sums of w row o with x row r over `length` elements.
template <int kOuts, int kRows, class TW>
HWY_INLINE void dot_tile(const TW* w, std::int64_t w_stride, const float* x, std::int64_t x_stride,
                         int length, float* lanes, std::int64_t lanes_stride) {
  F32x16 acc[kOuts][kRows];
  TANDEM_UNROLL for (int o = 0; o < kOuts; ++o) {
    TANDEM_UNROLL for (int r = 0; r < kRows; ++r) {
      acc[o][r] = load16(lanes + o * lanes_stride + r * kLanes);
    }
  }
  int k = 0;
  for (; k + kLanes <= length; k += kLanes) {
    F32x16 xs[kRows];
    TANDEM_UNROLL for (int r = 0; r < kRows; ++r) xs[r] = load16(x + r * x_stride + k);
    TANDEM_UNROLL for (int o = 0; o < kOuts; ++o) {
      const F32x16 wv = load16(w + o * w_stride + k);
      TANDEM_UNROLL for (int r = 0; r < kRows; ++r) acc[o][r] = fma16(wv, xs[r], acc[o][r]);
    }
  }
  if (k < length) {
    TANDEM_UNROLL for (int o = 0; o < kOuts; ++o) {
      const F32x16 wv = load16_n(w + o * w_stride + k, length - k);
      TANDEM_UNROLL for (int r = 0; r < kRows; ++r) {
        acc[o][r] = fma16(wv, load16(x + r * x_stride + k), acc[o][r]);
      }
    }
  }
  TANDEM_UNROLL for (int o = 0; o < kOuts; ++o) {
    TANDEM_UNROLL for (int r = 0; r < kRows; ++r) {
      store16(acc[o][r], lanes + o * lanes_stride + r * kLanes);
    }
  }
}

template <int kOuts, class TW>
HWY_INLINE void dot_rows(const TW* w, std::int64_t w_stride, const DotRows& rows, int length,
                         float* lanes) {
  const std::int64_t lanes_stride = static_cast<std::int64_t>(rows.count) * kLanes;
  int r = 0;
  for (; r + kTileRows <= rows.count; r += kTileRows) {
    dot_tile<kOuts, kTileRows>(w, w_stride, rows.x + r * rows.stride, rows.stride, length,
                               lanes + r * kLanes, lanes_stride);
  }
  for (; r < rows.count; ++r) {
    dot_tile<kOuts, 1>(w, w_stride, rows.x + r * rows.stride, rows.stride, length,
                       lanes + r * kLanes, lanes_stride);
  }
}

// lanes[num_outs][rows.count][16] += partial sums of every w row with every x row.
template <class TW>
void dot_block(const TW* w, std::int64_t w_stride, int num_outs, const DotRows& rows, int length,
               float* lanes) {
  const std::int64_t lanes_stride = static_cast<std::int64_t>(rows.count) * kLanes;
  int o = 0;
  if (rows.count == 1) {
    for (; o + kColumnOuts <= num_outs; o += kColumnOuts) {
      dot_tile<kColumnOuts, 1>(w + o * w_stride, w_stride, rows.x, rows.stride, length,
                               lanes + o * lanes_stride, lanes_stride);
    }
  }
  for (; o + kTileOuts <= num_outs; o += kTileOuts) {
    dot_rows<kTileOuts>(w + o * w_stride, w_stride, rows, length, lanes + o * lanes_stride);
  }
  for (; o < num_outs; ++o) {
    dot_rows<1>(w + o * w_stride, w_stride, rows, length, lanes + o * lanes_stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard, per target
