#include "kernels/ops/paged_attention.h"

#include "kernels/ops/check.h"
#include "kernels/ops/dispatch.h"

namespace tandem::ops {

std::size_t paged_attention_scratch_bytes(const Backend& backend, int num_heads, int head_dim,
                                          int max_rows, std::int64_t max_context) {
  check_heads(num_heads, head_dim);
  TANDEM_CHECK(max_rows >= 0 && max_context >= 0, "{} rows, context of {}", max_rows, max_context);
  TANDEM_DISPATCH(paged_attention_scratch_bytes, backend, num_heads, head_dim, max_rows,
                  max_context);
}

void paged_attention(Backend& backend, const PagedAttentionArgs& args) {
  check_batch(args.batch);
  const KvPages& pages = args.pages;
  check_heads(args.num_heads, pages.head_dim);
  check_pages(pages, args.batch, args.num_heads);
  TANDEM_CHECK(args.num_heads / pages.num_kv_heads <= kMaxHeadGroup, "{} heads on {} KV heads",
               args.num_heads, pages.num_kv_heads);
  TANDEM_CHECK(args.first_index >= 0, "first_index {}", args.first_index);
  if (args.batch.num_rows == 0) return;
  check_float_dtype(args.dtype, "q, gate, out");
  check_present(args.batch.positions, "positions");
  check_present(args.batch.row_slots, "row_slots");
  check_present(args.batch.segments, "segments");
  check_present(args.q, "q");
  TANDEM_CHECK(args.gate == nullptr || args.gate_head_stride >= pages.head_dim,
               "gate stride {} for heads of {}", args.gate_head_stride, pages.head_dim);
  check_present(args.out, "out");
  TANDEM_DISPATCH(paged_attention, backend, args);
}

}  // namespace tandem::ops
