// Chooses a linear's kernel.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/linear_chain.h"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/linear_prompt.h"
#include "kernels/cuda/linear_prompt_plan.h"
#include "kernels/cuda/linear_stream_plan.h"

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

namespace {

// How one linear is computed.
struct Choice {
  LinearOrder order;
  LinearPlan plan;
};

Choice choose(const CudaBackend& backend, const ops::LinearArgs& args) {
  Choice choice;
  choice.order = linear_order(args.weight, args.x_dtype, args.num_leaves);
  // A row alone may come without a stride.
  const bool x_is_aligned = reinterpret_cast<std::uintptr_t>(args.x) % 16 == 0 &&
                            (args.num_rows == 1 || args.x_stride % 8 == 0);
  if (args.row_class == ops::RowClass::kPrompt && x_is_aligned &&
      prompt_tiles_serve(backend.limits(), choice.order, args.weight)) {
    choice.plan.kernel = LinearKernel::kPrompt;
  } else if (stream_serves(choice.order, args)) {
    choice.plan.kernel = LinearKernel::kStream;
  } else {
    choice.plan = plan_linear(choice.order, args.weight.format, args.num_rows, x_is_aligned,
                              backend.limits().shared_bytes_per_block);
  }
  return choice;
}

// Several linears together where the kernel takes them. `beside_last`: of the same x as the linears
// before.
void run(CudaBackend& backend, std::span<const ops::LinearArgs> group, const Choice& choice,
         bool beside_last) {
  switch (choice.plan.kernel) {
    case LinearKernel::kPlain:
      return linear_plain(backend, group.front(), choice.order);
    case LinearKernel::kNarrow:
      return linear_narrow(backend, group, choice.order, choice.plan);
    case LinearKernel::kWide:
      return linear_wide(backend, group.front(), choice.order, choice.plan);
    case LinearKernel::kStream:
      return backend.chain().add_linears(group, choice.order, beside_last);
    case LinearKernel::kPrompt:
      return linear_prompt(backend, group.front(), choice.order);
  }
}

bool takes_groups(LinearKernel kernel) {
  return kernel == LinearKernel::kNarrow || kernel == LinearKernel::kStream;
}

}  // namespace

void linear(CudaBackend& backend, const ops::LinearArgs& args) {
  run(backend, {&args, 1}, choose(backend, args), false);
}

void linear_group(CudaBackend& backend, std::span<const ops::LinearArgs> group) {
  bool done[ops::kMaxLinearGroup] = {};
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (done[i]) continue;
    const Choice choice = choose(backend, group[i]);
    if (!takes_groups(choice.plan.kernel)) {
      run(backend, group.subspan(i, 1), choice, i > 0);
      continue;
    }
    // All of one format at once: small ones (gates of 48 outputs) would leave the GPU idle, and
    // every launch costs its start and end.
    ops::LinearArgs together[ops::kMaxLinearGroup];
    std::size_t count = 0;
    for (std::size_t j = i; j < group.size(); ++j) {
      const ops::LinearWeight &weight = group[j].weight, &first = group[i].weight;
      if (done[j] || weight.format != first.format || weight.scale_dtype != first.scale_dtype) {
        continue;
      }
      const Choice other = choose(backend, group[j]);
      if (other.order != choice.order || other.plan.kernel != choice.plan.kernel) continue;
      together[count++] = group[j];
      done[j] = true;
    }
    run(backend, {together, count}, choice, i > 0);
  }
}

}  // namespace tandem::cuda
