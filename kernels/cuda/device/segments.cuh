// Which segment a row of the batch belongs to. The host does not tell: segments change between the
// launches of a captured graph.
#pragma once

#include "kernels/ops/batch_view.h"

namespace tandem::cuda {

// nullptr for a row that no segment covers.
__device__ __forceinline__ const ops::Segment* segment_of_row(const ops::BatchView& batch,
                                                              int row) {
  for (int i = 0; i < batch.num_segments; ++i) {
    const ops::Segment& segment = batch.segments[i];
    if (row >= segment.first_row && row < segment.first_row + segment.num_rows) return &segment;
  }
  return nullptr;
}

}  // namespace tandem::cuda
