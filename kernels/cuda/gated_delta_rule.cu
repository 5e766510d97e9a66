// Entry of the gated delta rule: one order of summation for each class of rows.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/gated_delta.cuh"

namespace tandem::cuda {

std::size_t gated_delta_rule_scratch_bytes(const CudaBackend&, const ops::GdnShape& shape,
                                           int max_rows) {
  return gated_delta_blocks_scratch_bytes(shape, max_rows);
}

void gated_delta_rule(CudaBackend& backend, const ops::GatedDeltaRuleArgs& args) {
  if (args.batch.num_segments == 0) return;
  if (args.batch.row_class == ops::RowClass::kGenerated) {
    gated_delta_recurrent(backend, args);
  } else {
    gated_delta_blocks(backend, args);
  }
}

}  // namespace tandem::cuda
