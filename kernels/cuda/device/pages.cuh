// Finding a sequence's entries in the pages of a KV cache.
#pragma once

#include <cstdint>

#include "kernels/ops/attention_prep.h"
#include "kernels/ops/batch_view.h"

namespace tandem::cuda {

// Offset in elements, in either plane, of KV head h at cache index `index` of a slot.
__device__ __forceinline__ std::int64_t page_entry(const ops::BatchView& batch,
                                                   const ops::KvPages& pages, int slot, int index,
                                                   int h) {
  const int page_in_table = index / pages.page_tokens;
  const std::int64_t page =
      batch.page_table[std::int64_t{slot} * batch.pages_per_sequence + page_in_table];
  return ((page * pages.num_kv_heads + h) * pages.page_tokens + index -
          page_in_table * pages.page_tokens) *
         pages.head_dim;
}

}  // namespace tandem::cuda
