// Adds the leaves of a sum as a binary tree, ((l0 + l1) + (l2 + l3)) ..., while they arrive one
// after the other: like counting in binary, each level waits for its left neighbour's partner.
#pragma once

#include "kernels/ops/limits.h"

namespace tandem::cuda {

// kValues sums side by side; the number of leaves is a power of two.
template <int kValues>
class LeafTree {
 public:
  // `sums` becomes the root of the largest subtree that ends with this leaf.
  __device__ __forceinline__ void add(int leaf, float (&sums)[kValues]) {
    int level = 0;
    for (; (leaf >> level & 1) != 0; ++level) {
#pragma unroll
      for (int i = 0; i < kValues; ++i) sums[i] = waiting_[level][i] + sums[i];
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) waiting_[level][i] = root_[i] = sums[i];
  }

  // Of all leaves, after the last.
  __device__ __forceinline__ const float (&root() const)[kValues] { return root_; }

 private:
  static constexpr int kLevels = 7;
  static_assert(1 << (kLevels - 1) == ops::kMaxLeaves);
  float waiting_[kLevels][kValues];
  float root_[kValues];
};

}  // namespace tandem::cuda
