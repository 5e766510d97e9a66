// Gated DeltaNet layer (qwen.md, section 4): projections, causal convolution, gated delta rule,
// gated norm. Split by key heads with their value heads. Owns the layer's recurrent state of every
// slot and the snapshots of it that the prefix cache keeps.
#pragma once

#include <cstdint>
#include <string>

#include "base/tensor.h"
#include "kernels/ops/batch_view.h"
#include "kernels/ops/gated_delta_rule.h"
#include "kernels/ops/gated_rms_norm.h"
#include "layers/linear.h"

namespace tandem {

struct GatedDeltaNetConfig {
  std::int64_t hidden = 0;
  std::int64_t num_k_heads = 0;  // of the whole model
  std::int64_t num_v_heads = 0;  // of the whole model
  std::int64_t k_dim = 0;
  std::int64_t v_dim = 0;
  std::int64_t conv_kernel = 4;
  double eps = 0;
  ops::GateActivation gate = ops::GateActivation::kSilu;
};

class GatedDeltaNet {
 public:
  // Tensors <prefix>in_proj_{qkv,z,b,a}.weight, conv1d.weight, A_log, dt_bias, norm.weight,
  // out_proj.weight.
  GatedDeltaNet(WeightBinder& binder, PartAllocator& allocator, const std::string& prefix,
                const GatedDeltaNetConfig& config, const EngineShape& shape);

  void prepack_weights(Backend& backend);
  // in [rows, hidden] -> out [rows, hidden] fp32, summed over ranks. Advances the slots' states as
  // ops/gated_delta_rule.h and ops/causal_conv.h say.
  void forward(const LayerContext& context, const ops::BatchView& batch, const LayerInput& in,
               float* out) const;

  // State of a slot whose sequence starts anew, and its snapshots at committed positions (no
  // pending rows, no open block).
  void reset_slot(Backend& backend, int slot) const;
  void save_slot(Backend& backend, int slot, int snapshot) const;
  void restore_slot(Backend& backend, int slot, int snapshot) const;

  // S [num_v_heads, k_dim, v_dim] of a slot on this rank, pending rows not applied.
  TensorView recurrent_state(int slot) const;
  // The committed window [conv_kernel - 1, channels] of a slot.
  TensorView window(int slot) const;

 private:
  std::int64_t state_floats() const;
  std::int64_t window_bytes() const;  // of one slot, all columns
  std::int64_t committed_window_bytes() const;

  GatedDeltaNetConfig config_;
  ops::GdnShape shape_;  // of this rank
  int max_round_rows_ = 0;
  DType activations_ = DType::kBF16;
  ColumnLinear qkv_;
  ColumnLinear z_;
  ColumnLinear b_;
  ColumnLinear a_;
  const float* conv_weight_;  // [channels, conv_kernel]
  const float* a_log_;        // [num_v_heads]
  const float* dt_bias_;      // [num_v_heads]
  const float* norm_weight_;  // [v_dim]
  RowLinear out_;
  ops::GdnState state_;
  void* window_;           // [slots, conv_kernel - 1 + max_round_rows, channels]
  float* snapshot_s_;      // [snapshots, num_v_heads, k_dim, v_dim]
  void* snapshot_window_;  // [snapshots, conv_kernel - 1, channels]
};

}  // namespace tandem
