// The gated delta rule in blocks of 64 rows, for prompt rows. Inside a block a row depends on the
// state at the block's start and on the rows before it, each sum in ascending order over keys or
// rows; it is computed from the same values in the same order whether the block arrives whole or in
// pieces.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gated_delta_blocks.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/dot-inl.h"
#include "kernels/cpu/gated_delta-inl.h"
#include "kernels/cpu/gated_delta_rule.h"
#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/matmul-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/ops/check.h"

#ifndef TANDEM_KERNELS_CPU_GATED_DELTA_BLOCKS_SCRATCH_
#define TANDEM_KERNELS_CPU_GATED_DELTA_BLOCKS_SCRATCH_
namespace tandem::cpu {
namespace {

constexpr int kBlock = ops::kGdnBlock;
constexpr int kGramRows = 16;  // rows whose dot products are in flight

// One block of one head. Rows of q, k are k_dim apart, rows of n, s_k, s_q v_dim.
struct BlockScratch {
  float q[kBlock * ops::kMaxGdnDim];    // q^
  float k[kBlock * ops::kMaxGdnDim];    // k^
  float n[kBlock * ops::kMaxGdnDim];    // pseudo-values
  float s_k[kBlock * ops::kMaxGdnDim];  // S^T k^, then the weighted keys of the fold
  float s_q[kBlock * ops::kMaxGdnDim];  // S^T q^, then the output
  float kk[kBlock * kBlock];            // e^{c_i - c_j} (k_i . k_j)
  float qk[kBlock * kBlock];            // e^{c_i - c_j} (q_i . k_j)
  float c[kBlock];                      // log-decay from the block's start to row i
  float beta[kBlock];
  float lanes[kBlock * kGramRows * 16];
  float dots[kBlock * kGramRows];
};
static_assert(sizeof(BlockScratch) <= kThreadScratchBytes);

// The rows of an open block that earlier chunks left behind, of one slot and head.
struct OpenBlock {
  float* k = nullptr;  // [64, k_dim]
  float* n = nullptr;  // [64, v_dim]
  float* c = nullptr;  // [64]
};

// The layout that ops::gdn_open_block_floats() counts: heads one after the other.
OpenBlock open_block_of(const ops::GatedDeltaRuleArgs& a, int slot, int v_head) {
  const ops::GdnShape& shape = a.shape;
  const std::int64_t per_head = std::int64_t{kBlock} * (shape.k_dim + shape.v_dim + 1);
  float* base = a.state.open_block + (std::int64_t{slot} * shape.num_v_heads + v_head) * per_head;
  return {base, base + kBlock * shape.k_dim, base + kBlock * (shape.k_dim + shape.v_dim)};
}

}  // namespace
}  // namespace tandem::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {
namespace {

// products[i][j] = e^{c_i - c_j} (x_i . k_j) for rows begin <= i < end and all j <= i.
void decayed_products(const float* x, int k_dim, int begin, int end, BlockScratch& s,
                      float* products) {
  for (int first = begin; first < end; first += kGramRows) {
    const int rows = std::min(kGramRows, end - first);
    const int keys = first + rows;  // no row looks beyond itself
    std::fill_n(s.lanes, keys * rows * kLanes, 0.0f);
    dot_block<Ahead::kNothing>(s.k, k_dim, keys, {x + first * k_dim, k_dim, rows}, k_dim, s.lanes);
    reduce16(s.lanes, keys * rows, s.dots);
    for (int i = first; i < first + rows; ++i) {
      float* row = products + i * kBlock;
      for (int j = 0; j < keys; ++j) row[j] = s.dots[j * rows + i - first];
      // The last vector runs past j = i into values that nobody reads.
      for (int j = 0; j <= i; j += kLanes) {
        const F32x16 decay = exp16(sub16(set16(s.c[i]), load16(s.c + j)));
        store16(mul16(decay, load16(row + j)), row + j);
      }
    }
  }
}

// n_i for begin <= i < end: v_i - e^{c_i} S^T k_i, minus the earlier rows' parts, times beta_i.
template <class T>
void pseudo_values(const T* v, std::int64_t v_stride, int v_dim, int begin, int end,
                   BlockScratch& s) {
  for (int i = begin; i < end; ++i) {
    float* n = s.n + i * v_dim;
    float minus[kBlock];
    for (int j = 0; j < i; ++j) minus[j] = -s.kk[i * kBlock + j];
    const F32x16 minus_decay = set16(-exp_scalar(s.c[i]));
    for (int d = 0; d < v_dim; d += kLanes) {
      const F32x16 value = load16(v + (i - begin) * v_stride + d);
      store16(fma16(minus_decay, load16(s.s_k + i * v_dim + d), value), n + d);
    }
    matmul({minus, 0, 1}, StridedRows<float>{s.n, v_dim}, 1, v_dim, i, n, v_dim);
    const F32x16 beta = set16(s.beta[i]);
    for (int d = 0; d < v_dim; d += kLanes) store16(mul16(beta, load16(n + d)), n + d);
  }
}

// o_i = e^{c_i} S^T q_i + sum_{j <= i} qk[i][j] n_j
void outputs(int v_dim, int begin, int end, BlockScratch& s, float* out, std::int64_t out_stride) {
  for (int i = begin; i < end; ++i) {
    float* o = s.s_q + i * v_dim;
    const F32x16 decay = set16(exp_scalar(s.c[i]));
    for (int d = 0; d < v_dim; d += kLanes) store16(mul16(decay, load16(o + d)), o + d);
    matmul({s.qk + i * kBlock, 0, 1}, StridedRows<float>{s.n, v_dim}, 1, v_dim, i + 1, o, v_dim);
    widen(o, v_dim, out + (i - begin) * out_stride);
  }
}

// S <- e^{c_last} S + sum_j e^{c_last - c_j} k_j n_j^T over the block's `rows` rows.
void fold(int k_dim, int v_dim, int rows, BlockScratch& s, float* state) {
  const float last = s.c[rows - 1];
  float* weighted = s.s_k;
  for (int j = 0; j < rows; ++j) {
    const F32x16 decay = set16(exp_scalar(last - s.c[j]));
    for (int i = 0; i < k_dim; i += kLanes) {
      store16(mul16(decay, load16(s.k + j * k_dim + i)), weighted + j * k_dim + i);
    }
  }
  const F32x16 decay = set16(exp_scalar(last));
  for (int i = 0; i < k_dim * v_dim; i += kLanes) {
    store16(mul16(decay, load16(state + i)), state + i);
  }
  matmul({weighted, 1, k_dim}, StridedRows<float>{s.n, v_dim}, k_dim, v_dim, rows, state, v_dim);
}

// Rows begin..end-1 of a block; `row` is the batch row of `begin`.
template <class T>
void run_block_rows(const ops::GatedDeltaRuleArgs& a, const float* gates, const GdnHead& head,
                    std::int64_t row, int begin, int end, const float* state, BlockScratch& s) {
  const ops::GdnShape& shape = a.shape;
  const int k_dim = shape.k_dim, v_dim = shape.v_dim;
  const T* qkv = static_cast<const T*>(a.qkv) + row * shape.channels();
  for (int i = begin; i < end; ++i) {
    const T* inputs = qkv + (i - begin) * shape.channels();
    const GdnGate gate = gate_of(gates, row + i - begin, shape.num_v_heads, head.v_head);
    normalize(inputs + head.q, k_dim, 1.0f / std::sqrt(static_cast<float>(k_dim)), s.q + i * k_dim);
    normalize(inputs + head.k, k_dim, 1.0f, s.k + i * k_dim);
    s.c[i] = (i == 0 ? 0.0f : s.c[i - 1]) + gate.g;
    s.beta[i] = gate.beta;
  }
  const int rows = end - begin;
  std::fill_n(s.s_k + begin * v_dim, rows * v_dim, 0.0f);
  std::fill_n(s.s_q + begin * v_dim, rows * v_dim, 0.0f);
  const StridedRows<float> state_rows{state, v_dim};
  matmul({s.k + begin * k_dim, k_dim, 1}, state_rows, rows, v_dim, k_dim, s.s_k + begin * v_dim,
         v_dim);
  matmul({s.q + begin * k_dim, k_dim, 1}, state_rows, rows, v_dim, k_dim, s.s_q + begin * v_dim,
         v_dim);
  decayed_products(s.k, k_dim, begin, end, s, s.kk);
  decayed_products(s.q, k_dim, begin, end, s, s.qk);
  pseudo_values(qkv + head.v, shape.channels(), v_dim, begin, end, s);
  outputs(v_dim, begin, end, s, a.out + (row * shape.num_v_heads + head.v_head) * v_dim,
          std::int64_t{shape.num_v_heads} * v_dim);
}

template <class T>
void run_head(const ops::GatedDeltaRuleArgs& a, const float* gates, const ops::Segment& segment,
              int v_head, BlockScratch& s) {
  const ops::GdnShape& shape = a.shape;
  const int k_dim = shape.k_dim, v_dim = shape.v_dim;
  const GdnHead head = gdn_head(shape, v_head);
  float* state = a.state.s + (std::int64_t{segment.slot} * shape.num_v_heads + v_head) * k_dim *
                                 std::int64_t{v_dim};
  for (int done = 0; done < segment.num_rows;) {
    const int begin = (segment.start_position + done) % kBlock;
    const int end = std::min(kBlock, begin + segment.num_rows - done);
    if (begin > 0) {
      const OpenBlock open = open_block_of(a, segment.slot, v_head);
      std::copy_n(open.k, begin * k_dim, s.k);
      std::copy_n(open.n, begin * v_dim, s.n);
      std::copy_n(open.c, begin, s.c);
    }
    run_block_rows<T>(a, gates, head, segment.first_row + done, begin, end, state, s);
    done += end - begin;
    const bool prompt_ends = done == segment.num_rows && segment.ends_prompt != 0;
    if (end == kBlock || prompt_ends) {
      fold(k_dim, v_dim, end, s, state);
    } else {
      const OpenBlock open = open_block_of(a, segment.slot, v_head);
      std::copy_n(s.k + begin * k_dim, (end - begin) * k_dim, open.k + begin * k_dim);
      std::copy_n(s.n + begin * v_dim, (end - begin) * v_dim, open.n + begin * v_dim);
      std::copy_n(s.c + begin, end - begin, open.c + begin);
    }
  }
}

void blocks_head(const ops::GatedDeltaRuleArgs& a, const float* gates, const ops::Segment& segment,
                 int v_head, BlockScratch& scratch) {
  if (a.dtype == DType::kF32) return run_head<float>(a, gates, segment, v_head, scratch);
  run_head<bf16>(a, gates, segment, v_head, scratch);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(blocks_head);

void gated_delta_blocks(const ops::GatedDeltaRuleArgs& args, const float* gates,
                        const ops::Segment& segment, int v_head, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(blocks_head)
  (args, gates, segment, v_head, *reinterpret_cast<BlockScratch*>(scratch));
}

}  // namespace tandem::cpu
#endif  // HWY_ONCE
