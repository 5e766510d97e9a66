#include "kernels/cuda/linear_prompt_plan.h"

namespace tandem::cuda {
namespace {

using ops::WeightFormat;

std::int64_t divide_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit; }

// Rounds in which the processors work off a product's tiles.
std::int64_t rounds(std::int64_t outs, int num_rows, int tile_outs, int num_processors) {
  return divide_up(divide_up(outs, tile_outs) * divide_up(num_rows, kPromptRows), num_processors);
}

}  // namespace

bool prompt_tiles_serve(const DeviceLimits& limits, const LinearOrder& order,
                        const ops::LinearWeight& weight) {
  if (!limits.warpgroup_products || order.path != LinearPath::kTensor) return false;
  // One matrix instruction's columns belong to one leaf.
  if (order.leaf_columns % 16 != 0) return false;
  switch (weight.format) {
    case WeightFormat::kBf16:
    case WeightFormat::kFp8Tensor:
    case WeightFormat::kFp8Channel:
    case WeightFormat::kInt8Channel:
      return true;
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4:
      return order.leaf_columns % 32 == 0;  // codes are loaded 16 bytes at a time
    case WeightFormat::kFp8Block:
      // Whole stages under a scale that a tile's outputs share.
      return weight.block_cols % 64 == 0 && weight.block_rows % 128 == 0;
    case WeightFormat::kInt8Group:
      // Whole stages under a scale of each output, or halves.
      return weight.block_rows == 1 && (weight.block_cols % 64 == 0 || weight.block_cols == 32);
    case WeightFormat::kF32:
      return false;
  }
  return false;
}

PromptTile prompt_tile_outs(const LinearOrder& order, const ops::LinearWeight& weight, int num_rows,
                            int num_processors) {
  if (order.num_leaves > 1 << prompt_tree_levels(128)) return PromptTile::k64;
  // Two scales of each output would come with a stage.
  if (weight.format == WeightFormat::kInt8Group && weight.block_cols < 64) return PromptTile::k64;
  // Decoding keeps up with half of the widest tile, and sums under scales need its registers.
  if (order.num_leaves > 1 || weight.format != WeightFormat::kBf16) return PromptTile::k128;
  // Twice the products in less than twice the time, for half the traffic between shared memory and
  // the matrix units; but the last round of few tiles may leave most processors without any.
  constexpr std::int64_t kWideCost = 7, kNarrowCost = 4;
  const std::int64_t wide = rounds(weight.out_features, num_rows, 256, num_processors);
  const std::int64_t narrow = rounds(weight.out_features, num_rows, 128, num_processors);
  return wide * kWideCost <= narrow * kNarrowCost ? PromptTile::k256 : PromptTile::k128;
}

}  // namespace tandem::cuda
