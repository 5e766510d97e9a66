// Linears by fp32 multiply-adds: one warp for one output and a few rows. Lane l adds the products
// of columns l, l + 32, ... of a leaf in ascending order; the lanes are added as a tree.
#include "kernels/cuda/device/leaf_tree.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/weights.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_kernels.h"

namespace tandem::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kRows = 4;  // of x, which share one read of the weight

template <class TX, class TY>
__global__ void __launch_bounds__(kWarps* kWarp)
    linear_plain_kernel(ops::LinearArgs a, LinearOrder order) {
  const std::int64_t out = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (out >= a.weight.out_features) return;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const std::int64_t first_row = std::int64_t{blockIdx.y} * kRows;
  const int rows = static_cast<int>(min(std::int64_t{kRows}, a.num_rows - first_row));
  const TX* x = static_cast<const TX*>(a.x) + first_row * a.x_stride;
  LeafTree<kRows> tree;
  for (int leaf = 0; leaf < order.num_leaves; ++leaf) {
    float sums[kRows] = {};
    const std::int64_t begin = leaf * order.leaf_columns;
    for (std::int64_t k = begin + lane; k < begin + order.leaf_columns; k += kWarp) {
      const float w = weight_value(a.weight, out, k);
      for (int r = 0; r < rows; ++r) sums[r] = fmaf(load_float(x + r * a.x_stride + k), w, sums[r]);
    }
    for (int r = 0; r < rows; ++r) sums[r] = warp_sum(sums[r]);
    tree.add(leaf, sums);
  }
  if (lane != 0) return;
  TY* y = static_cast<TY*>(a.y) + first_row * a.y_stride + out;
  for (int r = 0; r < rows; ++r) {
    store_float(tree.root()[r] * factor_of(a.row_factors, first_row + r), y + r * a.y_stride);
  }
}

}  // namespace

void linear_plain(const CudaBackend& backend, const ops::LinearArgs& args,
                  const LinearOrder& order) {
  const dim3 grid(blocks_for(args.weight.out_features, kWarps), blocks_for(args.num_rows, kRows));
  with_float_type(args.x_dtype, [&](auto x) {
    with_float_type(args.y_dtype, [&](auto y) {
      launch(backend, linear_plain_kernel<decltype(x), decltype(y)>, grid, kWarps * kWarp, 0, args,
             order);
    });
  });
}

}  // namespace tandem::cuda
