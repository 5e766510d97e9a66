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

namespace {

enum class LinearRoute { kPrompt, kPlan };

// How one linear is computed.
struct Choice {
  LinearRoute route = LinearRoute::kPlan;
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
    choice.route = LinearRoute::kPrompt;
    return choice;
  }
  choice.plan = plan_linear(choice.order, args.weight.format, args.num_rows, x_is_aligned,
                            backend.limits().shared_bytes_per_block);
  return choice;
}

void run(CudaBackend& backend, const ops::LinearArgs& args, const Choice& choice) {
  if (choice.route == LinearRoute::kPrompt) return linear_prompt(backend, args, choice.order);
  switch (choice.plan.kernel) {
    case LinearKernel::kPlain:
      return linear_plain(backend, args, choice.order);
    case LinearKernel::kNarrow:
      return linear_narrow(backend, {&args, 1}, choice.order, choice.plan);
    case LinearKernel::kWide:
      return linear_wide(backend, args, choice.order, choice.plan);
  }
}

}  // namespace

void linear(CudaBackend& backend, const ops::LinearArgs& args) {
  run(backend, args, choose(backend, args));
}

void linear_group(CudaBackend& backend, std::span<const ops::LinearArgs> group) {
  bool done[ops::kMaxLinearGroup] = {};
  for (std::size_t i = 0; i < group.size(); ++i) {
    if (done[i]) continue;
    const Choice choice = choose(backend, group[i]);
    if (choice.route != LinearRoute::kPlan || choice.plan.kernel != LinearKernel::kNarrow) {
      run(backend, group[i], choice);
      continue;
    }
    // The narrow kernel takes all of one format at once: small ones (gates of 48 outputs) would
    // leave the GPU idle, and every launch costs its start and end.
    ops::LinearArgs together[ops::kMaxLinearGroup];
    std::size_t count = 0;
    for (std::size_t j = i; j < group.size(); ++j) {
      if (done[j] || group[j].weight.format != group[i].weight.format) continue;
      if (linear_order(group[j].weight, group[j].x_dtype, group[j].num_leaves) != choice.order) {
        continue;
      }
      together[count++] = group[j];
      done[j] = true;
    }
    linear_narrow(backend, {together, count}, choice.order, choice.plan);
  }
}

}  // namespace tandem::cuda
