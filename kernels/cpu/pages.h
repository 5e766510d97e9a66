// Finding a sequence's entries in the pages of a KV cache.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "kernels/ops/batch_view.h"
#include "kernels/ops/kv_pages.h"

namespace tandem::cpu {

// Row, in either plane of pages and of dynamic scales, of KV head h at cache index `index` of a
// slot.
inline std::int64_t page_row(const ops::BatchView& batch, const ops::KvPages& pages,
                             std::int32_t slot, std::int32_t index, int h) {
  const std::int64_t page =
      batch.page_table[std::int64_t{slot} * batch.pages_per_sequence + index / pages.page_tokens];
  return (page * pages.num_kv_heads + h) * pages.page_tokens + index % pages.page_tokens;
}

// FP8: the scale of a row of KV head h.
inline float row_scale(ops::KvFormat format, const float* scales, std::int64_t row, int h) {
  return scales[format == ops::KvFormat::kFp8Dynamic ? row : h];
}

// Before a parallel region, which no exception may leave: every row's entry, but for padding,
// lies in a page that exists.
inline void check_rows_have_pages(const ops::BatchView& batch, const ops::KvPages& pages) {
  for (int r = 0; r < batch.num_rows; ++r) {
    const std::int32_t position = batch.positions[r];
    if (position == ops::kNoPosition) continue;
    TANDEM_CHECK(position >= 0 && position / pages.page_tokens < batch.pages_per_sequence,
                 "row {} at position {}: table of {} pages of {} tokens", r, position,
                 batch.pages_per_sequence, pages.page_tokens);
    const std::int32_t page =
        batch.page_table[std::int64_t{batch.row_slots[r]} * batch.pages_per_sequence +
                         position / pages.page_tokens];
    TANDEM_CHECK(page >= 0 && page < pages.num_pages, "row {} at position {}: page {} of {}", r,
                 position, page, pages.num_pages);
  }
}

}  // namespace tandem::cpu
