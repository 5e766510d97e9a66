// The gated delta rule's entry: gates, checks of the batch, the split over threads, and the record
// of a generated round. A head of a segment is one thread's; heads never exchange anything.
#include "kernels/cpu/gated_delta_rule.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/check.h"

namespace tandem::cpu {
namespace {

float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

void compute_gates(const CpuBackend& backend, const ops::GatedDeltaRuleArgs& args, float* gates) {
  const int heads = args.shape.num_v_heads;
  parallel_ranges(backend, args.batch.num_rows, rows_of_work(64 * heads),
                  [&](std::int64_t first, std::int64_t last, int) {
                    for (std::int64_t r = first; r < last; ++r) {
                      float* row = gates + r * 2 * heads;
                      for (int h = 0; h < heads; ++h) {
                        row[h] = -std::exp(args.a_log[h]) *
                                 softplus(args.a[r * heads + h] + args.dt_bias[h]);
                        row[heads + h] = sigmoid(args.b[r * heads + h]);
                      }
                    }
                  });
}

void check_segments(const ops::GatedDeltaRuleArgs& args) {
  const ops::BatchView& batch = args.batch;
  for (int i = 0; i < batch.num_segments; ++i) {
    const ops::Segment& segment = batch.segments[i];
    const int pending = batch.pending_rows[segment.slot];
    if (batch.row_class == ops::RowClass::kGenerated) {
      TANDEM_CHECK(pending >= 0 && pending <= args.state.max_round_rows &&
                       segment.num_rows <= args.state.max_round_rows,
                   "slot {}: {} pending and {} new rows, rounds of at most {}", segment.slot,
                   pending, segment.num_rows, args.state.max_round_rows);
      continue;
    }
    TANDEM_CHECK(pending == 0, "slot {}: {} pending rows before a prompt chunk", segment.slot,
                 pending);
    const bool opens_inside = segment.start_position % ops::kGdnBlock != 0;
    const bool ends_inside = (segment.start_position + segment.num_rows) % ops::kGdnBlock != 0 &&
                             segment.ends_prompt == 0;
    TANDEM_CHECK(args.state.open_block != nullptr || (!opens_inside && !ends_inside),
                 "slot {}: rows {} to {} cut a block of {}, but open blocks are not kept",
                 segment.slot, segment.start_position, segment.start_position + segment.num_rows,
                 ops::kGdnBlock);
  }
}

// Only after all heads are done: they replay the round that this overwrites.
void record_round(const CpuBackend& backend, const ops::GatedDeltaRuleArgs& args,
                  const float* gates) {
  const std::int64_t channels = args.shape.channels();
  const std::size_t qkv_bytes = static_cast<std::size_t>(channels) * dtype_bytes(args.dtype);
  const std::int64_t gate_floats = 2 * args.shape.num_v_heads;
  const std::int64_t max_rows = args.state.max_round_rows;
  parallel_ranges(backend, args.batch.num_segments, 1,
                  [&](std::int64_t first, std::int64_t last, int) {
                    for (std::int64_t i = first; i < last; ++i) {
                      const ops::Segment& segment = args.batch.segments[i];
                      const std::int64_t record = segment.slot * max_rows;
                      const auto rows = static_cast<std::size_t>(segment.num_rows);
                      std::memcpy(static_cast<std::byte*>(args.state.round_qkv) +
                                      static_cast<std::size_t>(record) * qkv_bytes,
                                  static_cast<const std::byte*>(args.qkv) +
                                      static_cast<std::size_t>(segment.first_row) * qkv_bytes,
                                  rows * qkv_bytes);
                      std::memcpy(args.state.round_gates + record * gate_floats,
                                  gates + segment.first_row * gate_floats,
                                  rows * static_cast<std::size_t>(gate_floats) * sizeof(float));
                    }
                  });
}

}  // namespace

std::size_t gated_delta_rule_scratch_bytes(const CpuBackend&, const ops::GdnShape& shape,
                                           int max_rows) {
  return sizeof(float) * 2 * static_cast<std::size_t>(shape.num_v_heads) *
         static_cast<std::size_t>(std::max(1, max_rows));
}

void gated_delta_rule(CpuBackend& backend, const ops::GatedDeltaRuleArgs& args) {
  check_segments(args);
  auto* gates = static_cast<float*>(args.scratch);
  compute_gates(backend, args, gates);
  const bool generated = args.batch.row_class == ops::RowClass::kGenerated;
  const auto head = generated ? gated_delta_recurrent : gated_delta_blocks;
  const int heads = args.shape.num_v_heads;
  parallel_ranges(backend, std::int64_t{args.batch.num_segments} * heads, 1,
                  [&](std::int64_t first, std::int64_t last, int thread) {
                    for (std::int64_t i = first; i < last; ++i) {
                      const ops::Segment& segment = args.batch.segments[i / heads];
                      if (segment.num_rows == 0) continue;
                      head(args, gates, segment, static_cast<int>(i % heads),
                           backend.thread_scratch(thread));
                    }
                  });
  if (generated) record_round(backend, args, gates);
}

}  // namespace tandem::cpu
