// The gated delta rule row by row, for generated rows. The state is walked in strips of 64 columns,
// which do not depend on each other: a strip is read from memory once, brought up to date with the
// accepted rows of the last round and stored, then a copy in the cache takes the new rows.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/gated_delta_recurrent.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cmath>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/gated_delta-inl.h"
#include "kernels/cpu/gated_delta_rule.h"
#include "kernels/cpu/math-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/ops/check.h"

#ifndef TANDEM_KERNELS_CPU_GATED_DELTA_RECURRENT_SCRATCH_
#define TANDEM_KERNELS_CPU_GATED_DELTA_RECURRENT_SCRATCH_
namespace tandem::cpu {
namespace {

constexpr int kStrip = 64;  // columns; a strip of 128 x 64 floats fits the first-level cache

// A row's inputs to one head, normed and widened.
struct StepInputs {
  float q[ops::kMaxGdnDim];
  float k[ops::kMaxGdnDim];
  float v[ops::kMaxGdnDim];
  float decay;
  float beta;
  float padding[14];
};

struct RecurrentScratch {
  StepInputs steps[2 * ops::kMaxRoundRows];  // pending rows, then new rows
  float strip[ops::kMaxGdnDim * kStrip];
};
static_assert(sizeof(RecurrentScratch) <= kThreadScratchBytes);

}  // namespace
}  // namespace tandem::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {
namespace {

template <class T>
void prepare(const T* qkv, const GdnHead& head, const GdnGate& gate, int k_dim, int v_dim,
             StepInputs& step) {
  normalize(qkv + head.q, k_dim, 1.0f / std::sqrt(static_cast<float>(k_dim)), step.q);
  normalize(qkv + head.k, k_dim, 1.0f, step.k);
  widen(qkv + head.v, v_dim, step.v);
  step.decay = exp_scalar(gate.g);
  step.beta = gate.beta;
}

// One row on 16 * kVecs columns of the state (row distance `stride`), starting at value column
// `column`. Sums over the key dimension run in ascending order. A replayed row passes no `out`; the
// state it leaves is that of its first pass.
template <int kVecs>
HWY_INLINE void step_columns(const StepInputs& step, int k_dim, int column, float* s,
                             std::int64_t stride, float* out) {
  const F32x16 decay = set16(step.decay), beta = set16(step.beta);
  F32x16 u[kVecs], o[kVecs];
  TANDEM_UNROLL for (int v = 0; v < kVecs; ++v) u[v] = o[v] = zero16();
  for (int i = 0; i < k_dim; ++i) {
    float* row = s + i * stride;
    const F32x16 k = set16(step.k[i]);
    TANDEM_UNROLL for (int v = 0; v < kVecs; ++v) {
      const F32x16 decayed = mul16(load16(row + v * kLanes), decay);
      store16(decayed, row + v * kLanes);
      u[v] = fma16(k, decayed, u[v]);
    }
  }
  TANDEM_UNROLL for (int v = 0; v < kVecs; ++v) {
    u[v] = mul16(beta, sub16(load16(step.v + column + v * kLanes), u[v]));
  }
  for (int i = 0; i < k_dim; ++i) {
    float* row = s + i * stride;
    const F32x16 k = set16(step.k[i]), q = set16(step.q[i]);
    TANDEM_UNROLL for (int v = 0; v < kVecs; ++v) {
      const F32x16 updated = fma16(k, u[v], load16(row + v * kLanes));
      store16(updated, row + v * kLanes);
      o[v] = fma16(q, updated, o[v]);
    }
  }
  if (out != nullptr) {
    TANDEM_UNROLL for (int v = 0; v < kVecs; ++v) store16(o[v], out + column + v * kLanes);
  }
}

void step_strip(const StepInputs& step, int k_dim, int column, int width, float* s,
                std::int64_t stride, float* out) {
  int c = 0;
  for (; c + 4 * kLanes <= width; c += 4 * kLanes) {
    step_columns<4>(step, k_dim, column + c, s + c, stride, out);
  }
  for (; c < width; c += kLanes) step_columns<1>(step, k_dim, column + c, s + c, stride, out);
}

template <class T>
void run_head(const ops::GatedDeltaRuleArgs& a, const float* gates, const ops::Segment& segment,
              int v_head, RecurrentScratch& scratch) {
  const ops::GdnShape& shape = a.shape;
  const int k_dim = shape.k_dim, v_dim = shape.v_dim;
  const GdnHead head = gdn_head(shape, v_head);
  const int pending = a.batch.pending_rows[segment.slot];
  const std::int64_t record = segment.slot * std::int64_t{a.state.max_round_rows};
  for (int r = 0; r < pending; ++r) {
    prepare(static_cast<const T*>(a.state.round_qkv) + (record + r) * shape.channels(), head,
            gate_of(a.state.round_gates, record + r, shape.num_v_heads, v_head), k_dim, v_dim,
            scratch.steps[r]);
  }
  for (int r = 0; r < segment.num_rows; ++r) {
    const std::int64_t row = segment.first_row + r;
    prepare(static_cast<const T*>(a.qkv) + row * shape.channels(), head,
            gate_of(gates, row, shape.num_v_heads, v_head), k_dim, v_dim,
            scratch.steps[pending + r]);
  }
  float* state = a.state.s + (std::int64_t{segment.slot} * shape.num_v_heads + v_head) * k_dim *
                                 std::int64_t{v_dim};
  for (int column = 0; column < v_dim; column += kStrip) {
    const int width = v_dim - column < kStrip ? v_dim - column : kStrip;
    for (int r = 0; r < pending; ++r) {
      step_strip(scratch.steps[r], k_dim, column, width, state + column, v_dim, nullptr);
    }
    for (int i = 0; i < k_dim; ++i) {
      widen(state + i * std::int64_t{v_dim} + column, width, scratch.strip + i * kStrip);
    }
    for (int r = 0; r < segment.num_rows; ++r) {
      float* out =
          a.out + ((segment.first_row + r) * std::int64_t{shape.num_v_heads} + v_head) * v_dim;
      step_strip(scratch.steps[pending + r], k_dim, column, width, scratch.strip, kStrip, out);
    }
  }
}

void recurrent_head(const ops::GatedDeltaRuleArgs& a, const float* gates,
                    const ops::Segment& segment, int v_head, RecurrentScratch& scratch) {
  if (a.dtype == DType::kF32) return run_head<float>(a, gates, segment, v_head, scratch);
  run_head<bf16>(a, gates, segment, v_head, scratch);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(recurrent_head);

void gated_delta_recurrent(const ops::GatedDeltaRuleArgs& args, const float* gates,
                           const ops::Segment& segment, int v_head, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(recurrent_head)
  (args, gates, segment, v_head, *reinterpret_cast<RecurrentScratch*>(scratch));
}

}  // namespace tandem::cpu
#endif  // HWY_ONCE
