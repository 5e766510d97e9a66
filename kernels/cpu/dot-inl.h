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

// What a pass over weight rows does for the pass after it. Weights that come from memory are asked
// for one tile ahead: at every row's end the hardware's own prefetch loses the track.
enum class Ahead { kNothing, kNextRows };

inline constexpr int kLineBytes = 64;
inline constexpr int kIntoL2 = 2;  // __builtin_prefetch's locality: the first level holds x

// lanes[o][r][16] += partial sums of w row o with x row r over `length` elements.
template <int kOuts, int kRows, Ahead kAhead, class TW>
HWY_INLINE void dot_tile(const TW* w, std::int64_t w_stride, const float* x, std::int64_t x_stride,
                         int length, float* lanes, std::int64_t lanes_stride) {
  F32x16 acc[kOuts][kRows];
  TANDEM_UNROLL for (int o = 0; o < kOuts; ++o) {
    TANDEM_UNROLL for (int r = 0; r < kRows; ++r) {
      acc[o][r] = load16(lanes + o * lanes_stride + r * kLanes);
    }
  }
  constexpr int kLineSteps = kLineBytes / (kLanes * static_cast<int>(sizeof(TW)));
  static_assert(kLineSteps >= 1);
  const auto step = [&](int k) HWY_ATTR {
    F32x16 xs[kRows];
    TANDEM_UNROLL for (int r = 0; r < kRows; ++r) xs[r] = load16(x + r * x_stride + k);
    TANDEM_UNROLL for (int o = 0; o < kOuts; ++o) {
      const F32x16 wv = load16(w + o * w_stride + k);
      TANDEM_UNROLL for (int r = 0; r < kRows; ++r) acc[o][r] = fma16(wv, xs[r], acc[o][r]);
    }
  };
  int k = 0;
  for (; k + kLineSteps * kLanes <= length; k += kLineSteps * kLanes) {
    if constexpr (kAhead == Ahead::kNextRows) {
      TANDEM_UNROLL for (int o = 0; o < kOuts; ++o) {
        __builtin_prefetch(w + (kOuts + o) * w_stride + k, 0, kIntoL2);
      }
    }
    TANDEM_UNROLL for (int i = 0; i < kLineSteps; ++i) step(k + i * kLanes);
  }
  for (; k + kLanes <= length; k += kLanes) step(k);
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

// A tile of kRows rows from row r on; only the first of a pass asks for the next rows.
template <int kOuts, int kRows, Ahead kAhead, class TW>
HWY_INLINE void dot_rows_at(int r, const TW* w, std::int64_t w_stride, const DotRows& rows,
                            int length, float* lanes) {
  const float* x = rows.x + r * rows.stride;
  const std::int64_t lanes_stride = static_cast<std::int64_t>(rows.count) * kLanes;
  if (kAhead == Ahead::kNextRows && r == 0) {
    dot_tile<kOuts, kRows, kAhead>(w, w_stride, x, rows.stride, length, lanes, lanes_stride);
  } else {
    dot_tile<kOuts, kRows, Ahead::kNothing>(w, w_stride, x, rows.stride, length, lanes + r * kLanes,
                                            lanes_stride);
  }
}

template <int kOuts, Ahead kAhead, class TW>
HWY_INLINE void dot_rows(const TW* w, std::int64_t w_stride, const DotRows& rows, int length,
                         float* lanes) {
  int r = 0;
  for (; r + kTileRows <= rows.count; r += kTileRows) {
    dot_rows_at<kOuts, kTileRows, kAhead>(r, w, w_stride, rows, length, lanes);
  }
  if constexpr (kTileRows == 4) {
    switch (rows.count - r) {
      case 3:
        return dot_rows_at<kOuts, 3, kAhead>(r, w, w_stride, rows, length, lanes);
      case 2:
        return dot_rows_at<kOuts, 2, kAhead>(r, w, w_stride, rows, length, lanes);
      default:
        break;
    }
  }
  for (; r < rows.count; ++r) dot_rows_at<kOuts, 1, kAhead>(r, w, w_stride, rows, length, lanes);
}

// lanes[num_outs][rows.count][16] += partial sums of every w row with every x row.
template <Ahead kAhead, class TW>
void dot_block(const TW* w, std::int64_t w_stride, int num_outs, const DotRows& rows, int length,
               float* lanes) {
  const std::int64_t lanes_stride = static_cast<std::int64_t>(rows.count) * kLanes;
  int o = 0;
  if (rows.count == 1) {
    for (; o + kColumnOuts <= num_outs; o += kColumnOuts) {
      dot_tile<kColumnOuts, 1, kAhead>(w + o * w_stride, w_stride, rows.x, rows.stride, length,
                                       lanes + o * lanes_stride, lanes_stride);
    }
  }
  for (; o + kTileOuts <= num_outs; o += kTileOuts) {
    dot_rows<kTileOuts, kAhead>(w + o * w_stride, w_stride, rows, length, lanes + o * lanes_stride);
  }
  for (; o < num_outs; ++o) {
    dot_rows<1, Ahead::kNothing>(w + o * w_stride, w_stride, rows, length,
                                 lanes + o * lanes_stride);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard, per target
