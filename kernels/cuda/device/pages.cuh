// Finding a sequence's entries in the pages of a KV cache.
#pragma once

#include <cstdint>

#include "kernels/ops/batch_view.h"
#include "kernels/ops/kv_pages.h"

namespace tandem::cuda {

// Row, in either plane of pages and of dynamic scales, of KV head h at cache index `index` of a
// slot.
__device__ __forceinline__ std::int64_t entry_row(const ops::BatchView& batch,
                                                  const ops::KvPages& pages, int slot, int index,
                                                  int h) {
  const int page_in_table = index / pages.page_tokens;
  const std::int64_t page =
      batch.page_table[std::int64_t{slot} * batch.pages_per_sequence + page_in_table];
  return (page * pages.num_kv_heads + h) * pages.page_tokens + index -
         page_in_table * pages.page_tokens;
}

// FP8: where the scale of a row of KV head h lies in a plane of scales.
__device__ __forceinline__ std::int64_t scale_index(ops::KvFormat format, std::int64_t row, int h) {
  return format == ops::KvFormat::kFp8Dynamic ? row : h;
}

}  // namespace tandem::cuda
