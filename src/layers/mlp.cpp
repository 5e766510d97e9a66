#include "layers/mlp.h"

#include "kernels/ops/elementwise.h"

namespace tandem {
namespace {

std::vector<RowRange> my_rows(const WeightBinder& binder, std::int64_t n) {
  return {split_even(n, binder.tensor_parallel().rank, binder.tensor_parallel().size)};
}

}  // namespace

GatedMlp::GatedMlp(WeightBinder& binder, const std::string& prefix, std::int64_t hidden,
                   std::int64_t intermediate)
    : gate_(binder, prefix + "gate_proj.weight", intermediate, hidden,
            my_rows(binder, intermediate)),
      up_(binder, prefix + "up_proj.weight", intermediate, hidden, my_rows(binder, intermediate)),
      down_(binder, prefix + "down_proj.weight", hidden, intermediate, intermediate) {}

void GatedMlp::prepack_weights(Backend& backend) {
  gate_.prepack_weights(backend);
  up_.prepack_weights(backend);
  down_.prepack_weights(backend);
}

void GatedMlp::forward(const LayerContext& context, const LayerInput& in, float* out) const {
  const Scratch::Mark mark(context.scratch);
  const std::int64_t width = gate_.out_features();
  void* gate = context.scratch.take(context.activations, in.rows * width);
  void* up = context.scratch.take(context.activations, in.rows * width);
  if (context.scratch.measuring()) return;
  forward_together(context, in,
                   {{gate_, gate, context.activations}, {up_, up, context.activations}});
  ops::silu_mul(context.backend, {.gate = gate,
                                  .up = up,
                                  .dtype = context.activations,
                                  .num_rows = in.rows,
                                  .width = static_cast<int>(width),
                                  .y = gate});
  down_.forward(context, gate, in.rows, out);
}

}  // namespace tandem
