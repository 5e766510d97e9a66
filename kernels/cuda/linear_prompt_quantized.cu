// Prompt linears whose weights are decoded on the way: E4M3, E2M1 and INT8 codes are exact in bf16,
// E2M1 also with the scales of its blocks. What is not is applied to sums.
#include "kernels/cuda/linear_prompt.cuh"
#include "kernels/cuda/linear_prompt.h"
#include "kernels/cuda/linear_prompt_decode.cuh"

namespace tandem::cuda {
namespace {

using ops::WeightFormat;

template <WeightFormat kFormat>
void run(const CudaBackend& backend, const ops::LinearArgs& args, const LinearOrder& order) {
  const PromptTile tile =
      prompt_tile_outs(order, args.weight, args.num_rows, backend.limits().num_processors);
  if (tile == PromptTile::k64) return prompt::start<kFormat, 64>(backend, args, order);
  prompt::start<kFormat, 128>(backend, args, order);
}

}  // namespace

void linear_prompt_quantized(const CudaBackend& backend, const ops::LinearArgs& args,
                             const LinearOrder& order) {
  switch (args.weight.format) {
    case WeightFormat::kFp8Block:
      return run<WeightFormat::kFp8Block>(backend, args, order);
    case WeightFormat::kFp8Tensor:
      return run<WeightFormat::kFp8Tensor>(backend, args, order);
    case WeightFormat::kFp8Channel:
      return run<WeightFormat::kFp8Channel>(backend, args, order);
    case WeightFormat::kInt8Channel:
      return run<WeightFormat::kInt8Channel>(backend, args, order);
    case WeightFormat::kNvfp4:
      return run<WeightFormat::kNvfp4>(backend, args, order);
    case WeightFormat::kMxfp4:
      return run<WeightFormat::kMxfp4>(backend, args, order);
    case WeightFormat::kInt8Group:
      return run<WeightFormat::kInt8Group>(backend, args, order);
    case WeightFormat::kBf16:
    case WeightFormat::kF32:
      return;  // not served: prompt_tiles_serve()
  }
}

}  // namespace tandem::cuda
