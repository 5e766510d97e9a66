// Which linears of prompt rows the kernels of linear_prompt.h serve, and their tiles. Whether they
// serve depends on the weight, its leaves and the GPU, never on the number of rows: it decides a
// row's order of summation. The width of tiles shows in no bit. Plain host code.
#pragma once

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/linear_plan.h"
#include "kernels/ops/limits.h"

namespace tandem::cuda {

inline constexpr int kPromptRows = 128;  // of a tile

enum class PromptTile { k64 = 64, k128 = 128, k256 = 256 };  // outputs

// Levels of the tree of leaves that a tile has room for: the wider, the fewer.
constexpr int prompt_tree_levels(int tile_outs) {
  return tile_outs == 64 ? 6 : tile_outs == 128 ? 3 : 0;
}
static_assert(1 << prompt_tree_levels(64) == ops::kMaxLeaves);

bool prompt_tiles_serve(const DeviceLimits& limits, const LinearOrder& order,
                        const ops::LinearWeight& weight);

PromptTile prompt_tile_outs(const LinearOrder& order, const ops::LinearWeight& weight, int num_rows,
                            int num_processors);

}  // namespace tandem::cuda
