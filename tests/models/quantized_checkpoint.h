// Copies of a checkpoint whose projections are quantized as published checkpoints are, and of such
// a copy with the codes multiplied out again: what a kernel for a format computes must not depend
// on which of the two is read.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tandem::testing {

// Who writes such files, hence which tensors there are beside the codes.
enum class QuantRecipe {
  kFp8Block,           // Qwen: weight_scale_inv in BF16 for 128 x 128
  kModelOpt,           // nvidia: MLP and head NVFP4 with weight_scale_2, projections FP8 per tensor
  kCompressedTensors,  // MLP NVFP4 packed, reciprocal global scale; projections FP8 per row
  kMxfp4,              // MLP packed, E8M0 scales; projections INT8 per row
  kInt8Group,          // groups of 32 columns, BF16 scales
};
const std::vector<QuantRecipe>& quant_recipes();
std::string recipe_name(QuantRecipe recipe);

// `target` is created. Matrices whose columns do not divide into the format's groups stay as they
// are.
void write_quantized(const std::filesystem::path& source, const std::filesystem::path& target,
                     QuantRecipe recipe);
// Every quantized weight of `source` as F32, computed by the checkpoint's reference decoder.
void write_dequantized(const std::filesystem::path& source, const std::filesystem::path& target);

}  // namespace tandem::testing
