// Limits of every backend, chosen well above any known model, so that arrays inside kernels have
// sizes known at compile time. Apart from check.h, because device code cannot include that.
#pragma once

namespace tandem::ops {

inline constexpr int kMaxLeaves = 64;     // of a linear's K
inline constexpr int kMaxConvKernel = 8;  // taps
inline constexpr int kMaxHeadDim = 256;   // of attention
inline constexpr int kMaxHeadGroup = 64;  // query heads of one KV head
inline constexpr int kMaxGdnDim = 256;    // k_dim and v_dim
inline constexpr int kMaxRoundRows = 64;  // generated rows of a sequence in one step

}  // namespace tandem::ops
