// The device-visible arrays behind one BatchView: allocated once, refilled for every pass.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "kernels/ops/batch_view.h"
#include "layers/layer_context.h"
#include "memory/part_allocator.h"

namespace tandem {

// Per-slot tables shared by all passes.
struct SlotTables {
  std::int32_t* page_table = nullptr;    // [max_sequences, pages_per_sequence]
  std::int32_t* pending_rows = nullptr;  // [max_sequences]

  static SlotTables take(PartAllocator& allocator, const EngineShape& shape) {
    return {.page_table = allocator.take_array<std::int32_t>(
                parts::kHostTables, std::int64_t{shape.max_sequences} * shape.pages_per_sequence),
            .pending_rows =
                allocator.take_array<std::int32_t>(parts::kHostTables, shape.max_sequences)};
  }
};

class BatchArrays {
 public:
  BatchArrays(PartAllocator& allocator, const EngineShape& shape, SlotTables tables)
      : shape_(shape),
        tables_(tables),
        token_ids_(allocator.take_array<std::int32_t>(parts::kHostTables, shape.max_rows)),
        positions_(allocator.take_array<std::int32_t>(parts::kHostTables, shape.max_rows)),
        row_slots_(allocator.take_array<std::int32_t>(parts::kHostTables, shape.max_rows)),
        segments_(allocator.take_array<ops::Segment>(parts::kHostTables, shape.max_sequences)) {}

  void clear(ops::RowClass row_class) {
    row_class_ = row_class;
    num_rows_ = 0;
    num_segments_ = 0;
  }
  // Opens a segment; its rows follow.
  void add_segment(int slot, int start_position, bool ends_prompt = false) {
    TANDEM_CHECK(num_segments_ < shape_.max_sequences);
    segments_[num_segments_++] = {.slot = slot,
                                  .first_row = num_rows_,
                                  .num_rows = 0,
                                  .start_position = start_position,
                                  .ends_prompt = ends_prompt ? 1 : 0};
  }
  void add_row(std::int32_t token) {
    TANDEM_CHECK(num_rows_ < shape_.max_rows && num_segments_ > 0);
    auto& segment = segments_[num_segments_ - 1];
    token_ids_[num_rows_] = token;
    positions_[num_rows_] = segment.start_position + segment.num_rows;
    row_slots_[num_rows_] = segment.slot;
    ++segment.num_rows;
    ++num_rows_;
  }

  int num_rows() const { return num_rows_; }
  int num_segments() const { return num_segments_; }
  const ops::Segment& segment(int i) const { return segments_[i]; }

  ops::BatchView view() const {
    return {.row_class = row_class_,
            .num_rows = num_rows_,
            .num_segments = num_segments_,
            .token_ids = token_ids_,
            .positions = positions_,
            .row_slots = row_slots_,
            .segments = segments_,
            .page_table = tables_.page_table,
            .pages_per_sequence = shape_.pages_per_sequence,
            .page_tokens = shape_.page_tokens,
            .pending_rows = tables_.pending_rows};
  }

 private:
  EngineShape shape_;
  SlotTables tables_;
  std::int32_t* token_ids_;  // [max_rows]
  std::int32_t* positions_;  // [max_rows]
  std::int32_t* row_slots_;  // [max_rows]
  ops::Segment* segments_;   // [max_sequences]
  ops::RowClass row_class_ = ops::RowClass::kPrompt;
  int num_rows_ = 0;
  int num_segments_ = 0;
};

}  // namespace tandem
