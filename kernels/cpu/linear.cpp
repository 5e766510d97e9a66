// y = x W^T on the CPU. A task is a block of outputs for all rows, so weights come from memory once
// and are read again from the cache for each panel of 16 rows. Inside a panel the columns are
// walked in chunks whose x fits the cache as fp32; the 16 lanes of every (output, row) sum wait in
// scratch between chunks, which leaves their order of summation as dot-inl.h states it. One kernel
// family for one row and for many: tiles differ in what they share, never in how they sum.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/dot-inl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/quantized_row.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/ops/check.h"

#ifndef TANDEM_KERNELS_CPU_LINEAR_SCRATCH_
#define TANDEM_KERNELS_CPU_LINEAR_SCRATCH_
namespace tandem::cpu {
namespace {

constexpr int kPanelRows = 16;  // rows of x that share one pass over the weights
constexpr int kMaxOuts = 64;    // outputs of a task
constexpr int kXFloats =
    6144;  // x chunk of a panel: 24 KiB, in any first-level cache with room for weights
constexpr int kRowsDequantized = 8;
constexpr int kMaxDequantized = 4096;  // columns of a dequantized chunk
constexpr int kTreeLevels = std::bit_width(unsigned{ops::kMaxLeaves});

struct LinearScratch {
  float x[kXFloats];
  float lanes[kMaxOuts * kPanelRows * 16];
  float sums[kTreeLevels][kMaxOuts * kPanelRows];  // partial sums of the tree of leaves, per level
  float weights[kRowsDequantized * kMaxDequantized];
};
static_assert(sizeof(LinearScratch) <= kThreadScratchBytes);

}  // namespace
}  // namespace tandem::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr int round_up_lanes(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

// x[rows][columns] to fp32, zeros up to the next multiple of 16.
template <class T>
void widen_rows(const T* x, std::int64_t stride, int rows, int columns, float* out) {
  const int out_stride = round_up_lanes(columns);
  for (int r = 0; r < rows; ++r) {
    int k = 0;
    for (; k + kLanes <= columns; k += kLanes) {
      store16(load16(x + r * stride + k), out + r * out_stride + k);
    }
    if (k < columns) store16(load16_n(x + r * stride + k, columns - k), out + r * out_stride + k);
  }
}

void widen_x(const ops::LinearArgs& a, std::int64_t row, int rows, std::int64_t column, int columns,
             float* out) {
  const std::int64_t offset = row * a.x_stride + column;
  if (a.x_dtype == DType::kF32) {
    widen_rows(static_cast<const float*>(a.x) + offset, a.x_stride, rows, columns, out);
  } else {
    widen_rows(static_cast<const bf16*>(a.x) + offset, a.x_stride, rows, columns, out);
  }
}

// lanes += partial sums of outputs [out, out + outs) over columns [column, column + columns).
void add_chunk(const ops::LinearWeight& w, std::int64_t out, int outs, std::int64_t column,
               int columns, const DotRows& x, LinearScratch& s) {
  const std::int64_t offset = out * w.in_features + column;
  switch (w.format) {
    case ops::WeightFormat::kBf16:
      return dot_block<Ahead::kNextRows>(static_cast<const bf16*>(w.data) + offset, w.in_features,
                                         outs, x, columns, s.lanes);
    case ops::WeightFormat::kF32:
      return dot_block<Ahead::kNextRows>(static_cast<const float*>(w.data) + offset, w.in_features,
                                         outs, x, columns, s.lanes);
    default:
      break;
  }
  for (int o = 0; o < outs; o += kRowsDequantized) {
    const int n = std::min(kRowsDequantized, outs - o);
    for (int i = 0; i < n; ++i) {
      dequantize_row(w, out + o + i, column, columns, s.weights + i * kMaxDequantized);
    }
    dot_block<Ahead::kNothing>(s.weights, kMaxDequantized, n, x, columns,
                               s.lanes + o * x.count * kLanes);
  }
}

// s.sums[0][outs][rows] = the sums over all leaves, added as a binary tree.
void sum_leaves(const ops::LinearArgs& a, std::int64_t row, int rows, std::int64_t out, int outs,
                LinearScratch& s) {
  const std::int64_t leaf_columns = a.weight.in_features / a.num_leaves;
  const bool quantized =
      a.weight.format != ops::WeightFormat::kBf16 && a.weight.format != ops::WeightFormat::kF32;
  int chunk = kXFloats / rows / kLanes * kLanes;
  if (quantized) chunk = std::min(chunk, kMaxDequantized);
  const int count = outs * rows;
  int level = 0;  // the next free level; levels below hold sums of ever smaller subtrees
  for (int leaf = 0; leaf < a.num_leaves; ++leaf) {
    std::fill_n(s.lanes, count * kLanes, 0.0f);
    const std::int64_t begin = leaf * leaf_columns;
    for (std::int64_t k = 0; k < leaf_columns; k += chunk) {
      const int columns = static_cast<int>(std::min<std::int64_t>(chunk, leaf_columns - k));
      widen_x(a, row, rows, begin + k, columns, s.x);
      add_chunk(a.weight, out, outs, begin + k, columns, {s.x, round_up_lanes(columns), rows}, s);
    }
    reduce16(s.lanes, count, s.sums[level++]);
    // Leaf 2^m - 1 of a subtree of 2^m completes it: add its halves.
    for (int done = leaf + 1; done % 2 == 0; done /= 2) {
      --level;
      for (int i = 0; i < count; ++i) s.sums[level - 1][i] += s.sums[level][i];
    }
  }
}

// `factors`: [rows], or nullptr.
template <class T>
void write_sums(const float* sums, int rows, int outs, const float* factors, T* y,
                std::int64_t y_stride) {
  for (int r = 0; r < rows; ++r) {
    const float factor = factors == nullptr ? 1.0f : factors[r];
    for (int o = 0; o < outs; ++o) {
      const float sum = sums[o * rows + r] * factor;
      if constexpr (sizeof(T) == sizeof(float)) {
        y[r * y_stride + o] = sum;
      } else {
        y[r * y_stride + o] = to_bf16(sum);
      }
    }
  }
}

void linear_outputs(const ops::LinearArgs& a, std::int64_t out, int outs, LinearScratch& s) {
  for (std::int64_t row = 0; row < a.num_rows; row += kPanelRows) {
    const int rows = static_cast<int>(std::min<std::int64_t>(kPanelRows, a.num_rows - row));
    sum_leaves(a, row, rows, out, outs, s);
    const std::int64_t offset = row * a.y_stride + out;
    const float* factors = a.row_factors == nullptr ? nullptr : a.row_factors + row;
    if (a.y_dtype == DType::kF32) {
      write_sums(s.sums[0], rows, outs, factors, static_cast<float*>(a.y) + offset, a.y_stride);
    } else {
      write_sums(s.sums[0], rows, outs, factors, static_cast<bf16*>(a.y) + offset, a.y_stride);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(linear_outputs);

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

// Codes are decoded as checkpoints have them.
void prepack_weight(CpuBackend&, const ops::LinearWeight&) {}

void linear(CpuBackend& backend, const ops::LinearArgs& args) {
  const std::int64_t outs = args.weight.out_features;
  // Small layers still give every thread some blocks; blocks of eight outputs fill the tiles.
  const std::int64_t even = outs / (4 * backend.num_threads()) / 8 * 8;
  const std::int64_t grain = std::clamp<std::int64_t>(even, 8, kMaxOuts);
  const auto outputs = HWY_DYNAMIC_DISPATCH(linear_outputs);
  parallel_ranges(backend, outs, grain, [&](std::int64_t first, std::int64_t last, int thread) {
    auto& scratch = *reinterpret_cast<LinearScratch*>(backend.thread_scratch(thread));
    for (std::int64_t out = first; out < last; out += kMaxOuts) {
      outputs(args, out, static_cast<int>(std::min<std::int64_t>(kMaxOuts, last - out)), scratch);
    }
  });
}

void linear_group(CpuBackend& backend, std::span<const ops::LinearArgs> group) {
  for (const auto& args : group) linear(backend, args);
}

}  // namespace tandem::cpu
#endif  // HWY_ONCE
