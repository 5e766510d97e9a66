#include "kernels/cuda/gated_delta_mix_plan.h"

#include <cstdint>
#include <initializer_list>

namespace tandem::cuda {
namespace {

constexpr std::uintptr_t kPieceBytes = 16;  // that are copied at once
constexpr int kMaxGrid = 65535;             // in all dimensions but the first

bool aligned(std::initializer_list<const void*> arrays) {
  for (const void* p : arrays) {
    if (reinterpret_cast<std::uintptr_t>(p) % kPieceBytes != 0) return false;
  }
  return true;
}

}  // namespace

bool mixes_at_once(const ops::GatedDeltaMixArgs& args) {
  const auto& [conv, rule, norm] = args;
  const ops::GdnShape& shape = rule.shape;
  return rule.batch.row_class == ops::RowClass::kGenerated && conv.kernel == kMixTaps &&
         conv.max_round_rows <= kMixMaxRows && shape.k_dim == kMixDim && shape.v_dim == kMixDim &&
         shape.num_v_heads <= kMixMaxGroup * shape.num_k_heads && shape.num_k_heads <= kMaxGrid &&
         rule.batch.num_segments <= kMaxGrid && conv.u_stride == conv.channels &&
         aligned({conv.u, conv.weight, conv.window, rule.state.s, rule.state.round_qkv, norm.weight,
                  norm.z});
}

bool mixes_by_heads(const ops::GatedDeltaMixArgs& args, int num_processors) {
  const std::int64_t blocks =
      std::int64_t{args.rule.batch.num_segments} * args.rule.shape.num_v_heads;
  return blocks >= std::int64_t{2} * num_processors;
}

}  // namespace tandem::cuda
