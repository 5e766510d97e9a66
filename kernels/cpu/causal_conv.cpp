// Depthwise causal convolution and its window of past inputs. Threads take (segment, channel range)
// pairs: a channel's window is read and rewritten by one thread.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/causal_conv.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/ops/check.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {
namespace {

template <class T>
HWY_INLINE F32x16 load_channels(const T* x, int n) {
  return n == kLanes ? load16(x) : load16_n(x, n);
}

// Channels c .. c+n-1 of one segment, n <= 16.
template <class T>
void convolve(const ops::CausalConvArgs& a, const ops::Segment& segment, int c, int n) {
  const int taps = a.kernel;
  float weights[ops::kMaxConvKernel][kLanes] = {};
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < taps; ++j) {
      weights[j][i] = a.weight[static_cast<std::int64_t>(c + i) * taps + j];
    }
  }
  const std::int64_t window_rows = taps - 1 + a.max_round_rows;
  const T* window = static_cast<const T*>(a.window) +
                    (segment.slot * window_rows + a.batch.pending_rows[segment.slot]) * a.channels +
                    c;
  const T* u = static_cast<const T*>(a.u) + segment.first_row * a.u_stride + c;
  T* y = static_cast<T*>(a.y) + std::int64_t{segment.first_row} * a.channels + c;
  for (int t = 0; t < segment.num_rows; ++t) {
    F32x16 sum = zero16();
    for (int j = 0; j < taps; ++j) {
      const int source = t - (taps - 1) + j;  // row of the segment; negative: in the window
      const T* column = source < 0 ? window + (source + taps - 1) * std::int64_t{a.channels}
                                   : u + source * a.u_stride;
      sum = fma16(load16(weights[j]), load_channels(column, n), sum);
    }
    T* out = y + t * std::int64_t{a.channels};
    if (n == kLanes) {
      store16(silu16(sum), out);
    } else {
      store16_n(silu16(sum), out, n);
    }
  }
}

// The window after the segment, for channels c .. c+n-1.
template <class T>
void advance_window(const ops::CausalConvArgs& a, const ops::Segment& segment, int c, int n) {
  const int history = a.kernel - 1;
  const std::int64_t window_rows = history + a.max_round_rows;
  T* window = static_cast<T*>(a.window) + segment.slot * window_rows * a.channels + c;
  const T* u = static_cast<const T*>(a.u) + segment.first_row * a.u_stride + c;
  const int pending = a.batch.pending_rows[segment.slot];
  const std::size_t bytes = sizeof(T) * static_cast<std::size_t>(n);
  const bool prompt = a.batch.row_class == ops::RowClass::kPrompt;
  // A prompt chunk slides over its own rows, so that the window ends with its last one.
  const int shift = pending + (prompt ? segment.num_rows : 0);
  const int rows = history + (prompt ? 0 : segment.num_rows);
  for (int j = 0; j < rows; ++j) {
    // Column j comes from column j + shift of the old window with the segment's rows behind it.
    // Ascending j never overwrites what is still to be read: sources lie at or above j.
    const int from = j + shift;
    const T* source = from < pending + history ? window + from * std::int64_t{a.channels}
                                               : u + (from - pending - history) * a.u_stride;
    T* destination = window + j * std::int64_t{a.channels};
    if (source != destination) std::memcpy(destination, source, bytes);
  }
}

template <class T>
void conv_channels(const ops::CausalConvArgs& a, const ops::Segment& segment, int first, int last) {
  for (int c = first; c < last; c += kLanes) {
    convolve<T>(a, segment, c, last - c < kLanes ? last - c : kLanes);
  }
  if (segment.num_rows > 0) advance_window<T>(a, segment, first, last - first);
}

void causal_conv_channels(const ops::CausalConvArgs& a, const ops::Segment& segment, int first,
                          int last) {
  if (a.dtype == DType::kF32) return conv_channels<float>(a, segment, first, last);
  conv_channels<bf16>(a, segment, first, last);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(causal_conv_channels);

void causal_conv(CpuBackend& backend, const ops::CausalConvArgs& args) {
  const ops::BatchView& batch = args.batch;
  for (int i = 0; i < batch.num_segments; ++i) {
    const ops::Segment& segment = batch.segments[i];
    const int pending = batch.pending_rows[segment.slot];
    TANDEM_CHECK(pending >= 0 && pending <= args.max_round_rows,
                 "slot {}: {} pending rows of at most {}", segment.slot, pending,
                 args.max_round_rows);
    TANDEM_CHECK(
        batch.row_class == ops::RowClass::kPrompt || segment.num_rows <= args.max_round_rows,
        "slot {}: round of {} rows, at most {}", segment.slot, segment.num_rows,
        args.max_round_rows);
  }
  constexpr int kChannelGrain = 512;
  const std::int64_t pieces = (args.channels + kChannelGrain - 1) / kChannelGrain;
  const auto channels = HWY_DYNAMIC_DISPATCH(causal_conv_channels);
  parallel_ranges(backend, batch.num_segments * pieces, 1,
                  [&](std::int64_t first, std::int64_t last, int) {
                    for (std::int64_t i = first; i < last; ++i) {
                      const int begin = static_cast<int>(i % pieces) * kChannelGrain;
                      channels(args, batch.segments[i / pieces], begin,
                               std::min(args.channels, begin + kChannelGrain));
                    }
                  });
}

}  // namespace tandem::cpu
#endif  // HWY_ONCE
