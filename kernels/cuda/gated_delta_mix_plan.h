// Which rounds of a Gated DeltaNet layer one kernel does, and how its blocks are cut. Host code,
// tested without a GPU.
#pragma once

#include <cstddef>

#include "kernels/ops/gated_delta_mix.h"

namespace tandem::cuda {

inline constexpr int kMixBlocks = 8;                      // strips of a head, of 16 columns each
inline constexpr int kMixColumns = 16;                    // that a warp works on
inline constexpr int kMixDim = kMixBlocks * kMixColumns;  // of keys and of values, in known models
inline constexpr int kMixMaxGroup = 4;                    // value heads of a key head
inline constexpr int kMixMaxRows = kMixBlocks;            // of a segment
inline constexpr int kMixTaps = 4;                        // of the convolution

// Shared memory of a block that works on a strip of BF16 values; the kernel checks it.
inline constexpr std::size_t kMixStripsBytes = 32 * 1024;

// Otherwise three operators do it.
bool mixes_at_once(const ops::GatedDeltaMixArgs& args);

// Whether a block to each value head of each segment gives the processors two blocks each, as many
// as fit. Otherwise a block works on a strip of all value heads of a key head.
bool mixes_by_heads(const ops::GatedDeltaMixArgs& args, int num_processors);

}  // namespace tandem::cuda
