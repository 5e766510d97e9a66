// Chooses a linear's kernel.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/linear_prompt.h"
#include "kernels/cuda/linear_prompt_plan.h"

namespace tandem::cuda {

bool linear_supports(ops::WeightFormat format) {
  switch (format) {
    case ops::WeightFormat::kBf16:
    case ops::WeightFormat::kF32:
    case ops::WeightFormat::kFp8Block:
    case ops::WeightFormat::kFp8Tensor:
    case ops::WeightFormat::kFp8Channel:
    case ops::WeightFormat::kNvfp4:
    case ops::WeightFormat::kMxfp4:
    case ops::WeightFormat::kInt8Channel:
    case ops::WeightFormat::kInt8Group:
      return true;
  }
  return false;
}

void linear(CudaBackend& backend, const ops::LinearArgs& args) {
  const LinearOrder order = linear_order(args.weight, args.x_dtype, args.num_leaves);
  // A row alone may come without a stride.
  const bool x_is_aligned = reinterpret_cast<std::uintptr_t>(args.x) % 16 == 0 &&
                            (args.num_rows == 1 || args.x_stride % 8 == 0);
  if (args.row_class == ops::RowClass::kPrompt && x_is_aligned &&
      prompt_tiles_serve(backend.limits(), order, args.weight)) {
    return linear_prompt(backend, args, order);
  }
  const LinearPlan plan = plan_linear(order, args.weight.format, args.num_rows, x_is_aligned,
                                      backend.limits().shared_bytes_per_block);
  switch (plan.kernel) {
    case LinearKernel::kPlain:
      return linear_plain(backend, args, order);
    case LinearKernel::kNarrow:
      return linear_narrow(backend, args, order, plan);
    case LinearKernel::kWide:
      return linear_wide(backend, args, order, plan);
  }
}

}  // namespace tandem::cuda
