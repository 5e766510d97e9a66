// Depthwise causal convolution and its window of past inputs. One thread a channel; generated rows
// of a segment go through one thread, which then rewrites its channel of the window. Prompt rows
// are many: a thread takes eight of them, and a second kernel slides the windows when all have read
// them.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/segments.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/ops/limits.h"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kPromptRows = 8;  // of a thread
constexpr int kTaps = 4;        // of all known models
constexpr int kRoundRows = 8;   // of a segment, whose inputs a thread of a round holds

// One channel of one segment.
template <class T>
struct Channel {
  int c = 0;
  int pending = 0;
  const T* u = nullptr;  // row 0 of the segment
  T* window = nullptr;   // column 0 of the slot

  __device__ Channel(const ops::CausalConvArgs& a, const ops::Segment& segment, int channel)
      : c(channel),
        pending(a.batch.pending_rows[segment.slot]),
        u(static_cast<const T*>(a.u) + segment.first_row * a.u_stride + channel),
        window(static_cast<T*>(a.window) +
               std::int64_t{segment.slot} * (a.kernel - 1 + a.max_round_rows) * a.channels +
               channel) {}

  // Input `row` of the segment; negative rows lie in the window.
  __device__ T input(const ops::CausalConvArgs& a, int row) const {
    return row < 0 ? window[std::int64_t{pending + a.kernel - 1 + row} * a.channels]
                   : u[row * a.u_stride];
  }

  __device__ void convolve(const ops::CausalConvArgs& a, const ops::Segment& segment,
                           int row) const {
    const float* weight = a.weight + std::int64_t{c} * a.kernel;
    float sum = 0;
    for (int j = 0; j < a.kernel; ++j) {
      sum = fmaf(weight[j], to_float(input(a, row - (a.kernel - 1) + j)), sum);
    }
    store_float(silu(sum),
                static_cast<T*>(a.y) + std::int64_t{segment.first_row + row} * a.channels + c);
  }

  // kPromptRows rows at once: each input is loaded once, all of them together. The sums are those
  // of convolve(). For kernels of kTaps.
  __device__ void convolve_rows(const ops::CausalConvArgs& a, const ops::Segment& segment,
                                int first_row) const {
    float weight[kTaps], inputs[kPromptRows + kTaps - 1];
#pragma unroll
    for (int j = 0; j < kTaps; ++j) weight[j] = a.weight[std::int64_t{c} * kTaps + j];
#pragma unroll
    for (int i = 0; i < kPromptRows + kTaps - 1; ++i) {
      inputs[i] = to_float(input(a, first_row - (kTaps - 1) + i));
    }
    T* y = static_cast<T*>(a.y) + (std::int64_t{segment.first_row} + first_row) * a.channels + c;
#pragma unroll
    for (int row = 0; row < kPromptRows; ++row) {
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kTaps; ++j) sum = fmaf(weight[j], inputs[row + j], sum);
      store_float(silu(sum), y + std::int64_t{row} * a.channels);
    }
  }

  // Columns in ascending order never overwrite what is still to be read: each comes from its own
  // place or from one above it.
  __device__ void advance_window(const ops::CausalConvArgs& a, int first_row, int columns) const {
    for (int j = 0; j < columns; ++j) {
      window[std::int64_t{j} * a.channels] = input(a, first_row + j);
    }
  }
};

// A short segment: every input is loaded once, all of them together, and none after a store.
template <class T>
__device__ __forceinline__ void convolve_round(const ops::CausalConvArgs& a,
                                               const ops::Segment& segment,
                                               const Channel<T>& channel,
                                               const float (&weight)[kTaps]) {
  constexpr int kInputs = kTaps - 1 + kRoundRows;
  const int inputs = kTaps - 1 + segment.num_rows;
  T input[kInputs];
#pragma unroll
  for (int i = 0; i < kInputs; ++i) {
    if (i < inputs) input[i] = channel.input(a, i - (kTaps - 1));
  }
  T* y = static_cast<T*>(a.y) + std::int64_t{segment.first_row} * a.channels + channel.c;
#pragma unroll
  for (int row = 0; row < kRoundRows; ++row) {
    if (row >= segment.num_rows) break;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kTaps; ++j) sum = fmaf(weight[j], to_float(input[row + j]), sum);
    store_float(silu(sum), y + std::int64_t{row} * a.channels);
  }
#pragma unroll
  for (int i = 0; i < kInputs; ++i) {
    if (i < inputs) channel.window[std::int64_t{i} * a.channels] = input[i];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) causal_conv_round_kernel(ops::CausalConvArgs a) {
  allow_next_kernel();
  const int c = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (c >= a.channels) return;
  float weight[kTaps] = {};
  if (a.kernel == kTaps) {  // no kernel writes them
#pragma unroll
    for (int j = 0; j < kTaps; ++j) weight[j] = a.weight[std::int64_t{c} * kTaps + j];
  }
  wait_for_previous_kernel();
  const ops::Segment segment = a.batch.segments[blockIdx.x];
  if (segment.num_rows == 0) return;
  const Channel<T> channel(a, segment, c);
  if (a.kernel == kTaps && segment.num_rows <= kRoundRows) {
    return convolve_round(a, segment, channel, weight);
  }
  for (int row = 0; row < segment.num_rows; ++row) channel.convolve(a, segment, row);
  // The K-1 columns before the segment, then its own.
  channel.advance_window(a, 1 - a.kernel, a.kernel - 1 + segment.num_rows);
}

template <class T>
__global__ void __launch_bounds__(kThreads) causal_conv_prompt_kernel(ops::CausalConvArgs a) {
  const int c = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (c >= a.channels) return;
  const int first = static_cast<int>(blockIdx.x) * kPromptRows;
  const ops::Segment* segment = segment_of_row(a.batch, first);
  if (segment != nullptr && a.kernel == kTaps &&
      first + kPromptRows <= segment->first_row + segment->num_rows) {
    return Channel<T>(a, *segment, c).convolve_rows(a, *segment, first - segment->first_row);
  }
  const int end = min(first + kPromptRows, a.batch.num_rows);
  for (int row = first; row < end; ++row) {
    segment = segment_of_row(a.batch, row);
    if (segment == nullptr) continue;
    Channel<T>(a, *segment, c).convolve(a, *segment, row - segment->first_row);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) causal_conv_slide_kernel(ops::CausalConvArgs a) {
  const int c = static_cast<int>(blockIdx.y) * kThreads + static_cast<int>(threadIdx.x);
  if (c >= a.channels) return;
  const ops::Segment segment = a.batch.segments[blockIdx.x];
  Channel<T>(a, segment, c).advance_window(a, segment.num_rows + 1 - a.kernel, a.kernel - 1);
}

template <class T>
void run(const CudaBackend& backend, const ops::CausalConvArgs& args) {
  const unsigned channel_blocks = blocks_for(args.channels, kThreads);
  const dim3 by_segment(static_cast<unsigned>(args.batch.num_segments), channel_blocks);
  const dim3 by_rows(blocks_for(args.batch.num_rows, kPromptRows), channel_blocks);
  if (args.batch.row_class == ops::RowClass::kGenerated) {
    return launch_overlapping(backend, causal_conv_round_kernel<T>, by_segment, kThreads, 0, args);
  }
  launch(backend, causal_conv_prompt_kernel<T>, by_rows, kThreads, 0, args);
  launch(backend, causal_conv_slide_kernel<T>, by_segment, kThreads, 0, args);
}

}  // namespace

void causal_conv(CudaBackend& backend, const ops::CausalConvArgs& args) {
  if (args.batch.num_segments == 0) return;
  with_float_type(args.dtype, [&](auto type) { run<decltype(type)>(backend, args); });
}

}  // namespace tandem::cuda
