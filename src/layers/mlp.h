// Gated MLP: down( SiLU(gate x) * up x ), gate and up split by output, down by input.
#pragma once

#include <cstdint>
#include <string>

#include "layers/linear.h"

namespace tandem {

class GatedMlp {
 public:
  // Tensors <prefix>{gate,up,down}_proj.weight.
  GatedMlp(WeightBinder& binder, const std::string& prefix, std::int64_t hidden,
           std::int64_t intermediate);

  void prepack_weights(Backend& backend);
  // in [rows, hidden] -> out [rows, hidden] fp32, summed over ranks.
  void forward(const LayerContext& context, const LayerInput& in, float* out) const;

 private:
  ColumnLinear gate_;
  ColumnLinear up_;
  RowLinear down_;
};

}  // namespace tandem
