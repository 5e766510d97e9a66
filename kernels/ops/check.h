// Argument checks that several operators share. All are O(1) and always on: a call costs
// microseconds at least, and a wrong stride would corrupt memory silently.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/types.h"
#include "kernels/ops/batch_view.h"
#include "kernels/ops/kv_pages.h"
#include "kernels/ops/limits.h"

namespace tandem::ops {

// The types that activations, caches and unquantized weights come in.
inline void check_float_dtype(DType dtype, const char* name) {
  TANDEM_CHECK(dtype == DType::kBF16 || dtype == DType::kF32, "{}: dtype {}", name,
               dtype_name(dtype));
}

inline void check_present(const void* data, const char* name) {
  TANDEM_CHECK(data != nullptr, "{} is missing", name);
}

inline void check_batch(const BatchView& batch) {
  TANDEM_CHECK(batch.num_rows >= 0 && batch.num_segments >= 0, "{} rows in {} segments",
               batch.num_rows, batch.num_segments);
  TANDEM_CHECK(batch.num_segments <= batch.num_rows, "{} segments of {} rows", batch.num_segments,
               batch.num_rows);
}

inline void check_heads(int num_heads, int head_dim) {
  TANDEM_CHECK(num_heads > 0 && head_dim > 0 && head_dim <= kMaxHeadDim && head_dim % 16 == 0,
               "{} heads of {}: a multiple of 16 up to {}", num_heads, head_dim, kMaxHeadDim);
}

inline void check_pages(const KvPages& pages, const BatchView& batch, int num_heads) {
  TANDEM_CHECK(pages.num_kv_heads > 0 && num_heads % pages.num_kv_heads == 0,
               "{} heads on {} KV heads", num_heads, pages.num_kv_heads);
  TANDEM_CHECK(pages.page_tokens > 0 && pages.page_tokens == batch.page_tokens,
               "pages of {} tokens, page table of {}", pages.page_tokens, batch.page_tokens);
  check_present(pages.k_pages, "k_pages");
  check_present(pages.v_pages, "v_pages");
  TANDEM_CHECK(!is_fp8(pages.format) || (pages.k_scales != nullptr && pages.v_scales != nullptr),
               "FP8 pages without scales");
  check_present(batch.page_table, "page_table");
}

}  // namespace tandem::ops
