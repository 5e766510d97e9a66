// Depthwise causal convolution with SiLU over the inputs of a Gated DeltaNet layer.
//   y_t[c] = SiLU( sum_{j=0..K-1} w[c][j] * u_{t-(K-1)+j}[c] ),  fp32 sum in ascending j
// Inputs before the sequence start are zero (a fresh slot's window is zeroed by the caller).
#pragma once

#include <cstdint>

#include "base/types.h"
#include "kernels/backend.h"
#include "kernels/ops/batch_view.h"

namespace tandem::ops {

// The window keeps K-1 committed columns and the columns of the running round:
//   window: [max_sequences, (K - 1) + max_round_rows, channels], dtype of u
// Let o = pending_rows[slot]. On entry the K-1 columns before the segment's first row are
// window[slot][o .. o+K-2]. On exit:
//   kGenerated: window[slot][0 .. K-2] is that same window and the segment's columns follow it, so
//               that accepting a rows of the round needs nothing but pending_rows[slot] = a;
//   kPrompt:    window[slot][0 .. K-2] are the last K-1 columns up to and including the segment
//               (the caller sets pending_rows[slot] = 0).
struct CausalConvArgs {
  BatchView batch;
  const void* u = nullptr;     // [rows, channels], row stride u_stride
  DType dtype = DType::kBF16;  // of u, window, y
  std::int64_t u_stride = 0;
  int channels = 0;
  int kernel = 4;                 // K
  const float* weight = nullptr;  // [channels, K]
  void* window = nullptr;
  int max_round_rows = 0;
  void* y = nullptr;  // [rows, channels], contiguous; must not alias u
};

// Throws unless the arguments are valid; false if there is nothing to do.
bool check_causal_conv(const CausalConvArgs& args);

void causal_conv(Backend& backend, const CausalConvArgs& args);

}  // namespace tandem::ops
