// Prompt linears with BF16 weights, and the choice of tiles. The quantized formats are compiled
// apart, in linear_prompt_quantized.cu.
#include "kernels/cuda/linear_prompt.h"

#include "kernels/cuda/linear_prompt.cuh"

namespace tandem::cuda {

void linear_prompt(const CudaBackend& backend, const ops::LinearArgs& args,
                   const LinearOrder& order) {
  if (args.weight.format != ops::WeightFormat::kBf16) {
    return linear_prompt_quantized(backend, args, order);
  }
  switch (prompt_tile_outs(order, args.weight, args.num_rows, backend.limits().num_processors)) {
    case PromptTile::k256:
      return prompt::start<ops::WeightFormat::kBf16, 256>(backend, args, order);
    case PromptTile::k128:
      return prompt::start<ops::WeightFormat::kBf16, 128>(backend, args, order);
    case PromptTile::k64:
      return prompt::start<ops::WeightFormat::kBf16, 64>(backend, args, order);
  }
}

}  // namespace tandem::cuda
