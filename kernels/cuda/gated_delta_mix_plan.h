// Which rounds of a Gated DeltaNet layer one kernel does, and how its blocks are cut. Host code,
// tested without a GPU.
#pragma once

#include "kernels/ops/gated_delta_mix.h"

namespace tandem::cuda {

// A cluster works on one key head of one segment: each of its blocks on a strip of 16 columns of
// every value head, a warp to a head. Block r norms the segment's row r.
inline constexpr int kMixBlocks = 8;  // of a cluster
inline constexpr int kMixColumns = 16;
inline constexpr int kMixDim = kMixBlocks * kMixColumns;  // of keys and of values, in known models
inline constexpr int kMixMaxGroup = 4;                    // value heads of a key head
inline constexpr int kMixMaxRows = kMixBlocks;            // of a segment
inline constexpr int kMixTaps = 4;                        // of the convolution

// Otherwise three operators do it.
bool mixes_at_once(const ops::GatedDeltaMixArgs& args);

}  // namespace tandem::cuda
