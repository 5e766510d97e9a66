#include "kernels/ops/gated_delta_rule.h"

#include "kernels/ops/check.h"
#include "kernels/ops/dispatch.h"

namespace tandem::ops {
namespace {

void check_shape(const GdnShape& shape) {
  TANDEM_CHECK(
      shape.num_k_heads > 0 && shape.num_v_heads > 0 && shape.num_v_heads % shape.num_k_heads == 0,
      "{} value heads on {} key heads", shape.num_v_heads, shape.num_k_heads);
  TANDEM_CHECK(shape.k_dim > 0 && shape.k_dim <= kMaxGdnDim && shape.k_dim % 16 == 0 &&
                   shape.v_dim > 0 && shape.v_dim <= kMaxGdnDim && shape.v_dim % 16 == 0,
               "key and value width {} and {}: multiples of 16 up to {}", shape.k_dim, shape.v_dim,
               kMaxGdnDim);
}

}  // namespace

std::int64_t gdn_open_block_floats(const GdnShape& shape) {
  check_shape(shape);
  // Per row of the block and value head: a key [k_dim], a value [v_dim], at most two scalars. Keys
  // of one key head are stored once for each of its value heads, so that heads stay independent of
  // each other.
  return std::int64_t{kGdnBlock} * shape.num_v_heads * (shape.k_dim + shape.v_dim + 2);
}

std::size_t gated_delta_rule_scratch_bytes(const Backend& backend, const GdnShape& shape,
                                           int max_rows) {
  check_shape(shape);
  TANDEM_CHECK(max_rows >= 0, "{} rows", max_rows);
  TANDEM_DISPATCH(gated_delta_rule_scratch_bytes, backend, shape, max_rows);
}

bool check_gated_delta_rule(const GatedDeltaRuleArgs& args) {
  check_batch(args.batch);
  check_shape(args.shape);
  if (args.batch.num_rows == 0) return false;
  check_float_dtype(args.dtype, "qkv, round_qkv");
  check_present(args.batch.segments, "segments");
  check_present(args.batch.pending_rows, "pending_rows");
  check_present(args.qkv, "qkv");
  check_present(args.a, "a");
  check_present(args.b, "b");
  check_present(args.a_log, "a_log");
  check_present(args.dt_bias, "dt_bias");
  check_present(args.state.s, "state.s");
  if (args.batch.row_class == RowClass::kGenerated) {
    check_present(args.state.round_qkv, "state.round_qkv");
    check_present(args.state.round_gates, "state.round_gates");
    TANDEM_CHECK(args.state.max_round_rows > 0 && args.state.max_round_rows <= kMaxRoundRows,
                 "rounds of {} rows, at most {}", args.state.max_round_rows, kMaxRoundRows);
  }
  check_present(args.out, "out");
  check_present(args.scratch, "scratch");
  return true;
}

void gated_delta_rule(Backend& backend, const GatedDeltaRuleArgs& args) {
  if (check_gated_delta_rule(args)) TANDEM_DISPATCH(gated_delta_rule, backend, args);
}

}  // namespace tandem::ops
