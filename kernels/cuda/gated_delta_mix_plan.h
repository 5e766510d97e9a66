// Whether one kernel can do what a Gated DeltaNet layer does between its projections, and how its
// blocks are cut. Host code, tested without a GPU.
#pragma once

#include "kernels/ops/gated_delta_mix.h"

namespace tandem::cuda {

// A cluster works on one key head of one segment: its value heads' columns, 16 to a warp, lie in
// order over the warps of the cluster's blocks, and block r norms the segment's row r.
inline constexpr int kMixBlocks = 8;  // of a cluster
inline constexpr int kMixColumns = 16;
inline constexpr int kMixMaxWarps = 4;  // of a block
inline constexpr int kMixMaxRows = kMixBlocks;
inline constexpr int kMixTaps = 4;
inline constexpr int kMixMaxDim = 128;  // of keys and of values
inline constexpr int kMixMaxValues = kMixBlocks * kMixMaxWarps * kMixColumns;  // of a key head

struct MixPlan {
  bool fits = false;  // otherwise three operators do it
  int warps = 0;      // of a block
};

MixPlan plan_mix(const ops::GatedDeltaMixArgs& args);

}  // namespace tandem::cuda
