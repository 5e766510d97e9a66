#include "kernels/ops/attention_prep.h"

#include "kernels/ops/check.h"
#include "kernels/ops/dispatch.h"

namespace tandem::ops {

void attention_prep(Backend& backend, const AttentionPrepArgs& args) {
  check_batch(args.batch);
  const KvPages& pages = args.pages;
  check_heads(args.num_heads, pages.head_dim);
  TANDEM_CHECK(
      args.rotary_dim >= 0 && args.rotary_dim % 2 == 0 && args.rotary_dim <= pages.head_dim,
      "{} of {} dimensions rotate", args.rotary_dim, pages.head_dim);
  check_pages(pages, args.batch, args.num_heads);
  if (args.batch.num_rows == 0) return;
  check_float_dtype(args.dtype, "q_gate, k, v, q_out");
  check_present(args.batch.positions, "positions");
  check_present(args.batch.row_slots, "row_slots");
  check_present(args.q_gate, "q_gate");
  check_present(args.k, "k");
  check_present(args.v, "v");
  check_present(args.q_norm, "q_norm");
  check_present(args.k_norm, "k_norm");
  TANDEM_CHECK(args.inv_freq != nullptr || args.rotary_dim == 0, "inv_freq is missing");
  check_present(args.q_out, "q_out");
  TANDEM_DISPATCH(attention_prep, backend, args);
}

}  // namespace tandem::ops
