// Entry of paged attention: which kernel.
#include "base/error.h"
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/cuda_ops.h"

namespace tandem::cuda {

std::size_t paged_attention_scratch_bytes(const CudaBackend&, int num_heads, int head_dim,
                                          int max_rows, std::int64_t max_context) {
  return attention_scratch_bytes(num_heads, head_dim, max_rows, max_context);
}

void paged_attention(CudaBackend& backend, const ops::PagedAttentionArgs& args) {
  const ops::KvPages& pages = args.pages;
  const std::int64_t page_rows =
      std::int64_t{pages.num_pages} * pages.num_kv_heads * pages.page_tokens;
  TANDEM_CHECK(page_rows < kNoRow, "{} rows of pages", page_rows);
  const std::int64_t max_context =
      std::int64_t{args.batch.pages_per_sequence} * args.batch.page_tokens;
  TANDEM_CHECK(max_context <= kMaxContext, "a page table that spans {} tokens", max_context);
  const AttentionSize size{.path = attention_path(args.dtype, pages.format, args.batch.row_class),
                           .num_rows = args.batch.num_rows,
                           .num_segments = args.batch.num_segments,
                           .num_kv_heads = pages.num_kv_heads,
                           .group = args.num_heads / pages.num_kv_heads,
                           .head_dim = pages.head_dim,
                           .element_bytes = ops::is_fp8(pages.format) ? 1 : 2,
                           .max_context = max_context,
                           .scratch_bytes = args.scratch == nullptr ? 0 : args.scratch_bytes,
                           .max_arrivals = kNumArrivals};
  switch (size.path) {
    case AttentionPath::kGenerated:
      if (ops::is_fp8(pages.format)) return attention_generated_fp8(backend, args, size);
      return attention_generated(backend, args, size);
    case AttentionPath::kPrompt:
      if (ops::is_fp8(pages.format)) return attention_prompt_fp8(backend, args, size);
      return attention_prompt(backend, args, size);
    case AttentionPath::kPlain:
      return attention_plain(backend, args, size);
  }
}

}  // namespace tandem::cuda
