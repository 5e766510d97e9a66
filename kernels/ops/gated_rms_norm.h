// The norm and output gate behind the delta rule, per row and value head:
//   y = w * (o * rsqrt(mean(o^2) + eps)) * act(z),   plain w, fp32 inside, one rounding
#pragma once

#include <cstdint>

#include "base/types.h"
#include "kernels/backend.h"

namespace tandem::ops {

enum class GateActivation { kSilu, kSigmoid };

struct GatedRmsNormArgs {
  const float* o = nullptr;       // [num_rows, num_heads, width]
  const void* z = nullptr;        // [num_rows, num_heads, width]
  DType dtype = DType::kBF16;     // of z and y
  const float* weight = nullptr;  // [width]
  float eps = 1e-6f;
  GateActivation activation = GateActivation::kSilu;
  int num_rows = 0;
  int num_heads = 0;
  int width = 0;
  void* y = nullptr;  // [num_rows, num_heads, width]; may alias z
};

// Throws unless the arguments are valid; false if there is nothing to do.
bool check_gated_rms_norm(const GatedRmsNormArgs& args);

void gated_rms_norm(Backend& backend, const GatedRmsNormArgs& args);

}  // namespace tandem::ops
