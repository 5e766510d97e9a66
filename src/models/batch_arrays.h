// The arrays behind one BatchView: allocated once, refilled for every pass. The host writes its own
// copy; upload() brings it to where kernels read, in the order of the backend's work, so that a GPU
// does not fetch every index over its bus, layer after layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "kernels/ops/batch_view.h"
#include "layers/layer_context.h"
#include "memory/part_allocator.h"

namespace tandem {

// Per-slot tables shared by all passes.
class SlotTables {
 public:
  SlotTables(PartAllocator& allocator, const EngineShape& shape)
      : page_table(allocator.take_array<std::int32_t>(parts::kHostTables, num_pages(shape))),
        pending_rows(allocator.take_array<std::int32_t>(parts::kHostTables, shape.max_sequences)),
        shape_(shape),
        device_page_table_(
            allocator.take_array<std::int32_t>(parts::kActivations, num_pages(shape))),
        device_pending_rows_(
            allocator.take_array<std::int32_t>(parts::kActivations, shape.max_sequences)) {}
  SlotTables(const SlotTables&) = delete;
  SlotTables& operator=(const SlotTables&) = delete;

  // Before the first pass.
  void clear(Backend& backend) {
    const auto pages = static_cast<std::size_t>(num_pages(shape_));
    std::fill_n(page_table, pages, 0);
    std::fill_n(pending_rows, shape_.max_sequences, 0);
    backend.zero(device_page_table_, pages * sizeof(std::int32_t));
    backend.zero(device_pending_rows_,
                 static_cast<std::size_t>(shape_.max_sequences) * sizeof(std::int32_t));
    uploaded_.assign(pages, 0);
    uploaded_pending_.assign(static_cast<std::size_t>(shape_.max_sequences), 0);
  }
  // The first `count` pages of a slot, unless they are there already.
  void upload_pages(Backend& backend, int slot, int count) {
    if (uploaded_.empty()) clear_shadow();
    const std::int64_t first = std::int64_t{slot} * shape_.pages_per_sequence;
    count = std::min(count, shape_.pages_per_sequence);
    const std::int32_t* row = page_table + first;
    if (std::equal(row, row + count, uploaded_.begin() + first)) return;
    std::copy_n(row, count, uploaded_.begin() + first);
    backend.copy(device_page_table_ + first, row,
                 static_cast<std::size_t>(count) * sizeof(std::int32_t));
  }
  // Those that the host has changed. Each by itself: between them may lie slots that rounds on the
  // device have moved on since the host last heard of them.
  void upload_pending_rows(Backend& backend) {
    if (uploaded_.empty()) clear_shadow();
    for (int slot = 0; slot < shape_.max_sequences; ++slot) {
      auto& uploaded = uploaded_pending_[static_cast<std::size_t>(slot)];
      if (pending_rows[slot] == uploaded) continue;
      uploaded = pending_rows[slot];
      backend.copy(device_pending_rows_ + slot, pending_rows + slot, sizeof(std::int32_t));
    }
  }
  // The device has set it itself.
  void note_pending_rows(int slot, int rows) {
    if (uploaded_.empty()) clear_shadow();
    pending_rows[slot] = uploaded_pending_[static_cast<std::size_t>(slot)] = rows;
  }
  const std::int32_t* device_page_table() const { return device_page_table_; }
  std::int32_t* device_pending_rows() const { return device_pending_rows_; }

  // The host's; to be changed only while nothing that was enqueued may still copy them.
  std::int32_t* page_table;    // [max_sequences, pages_per_sequence]
  std::int32_t* pending_rows;  // [max_sequences]

 private:
  static std::int64_t num_pages(const EngineShape& shape) {
    return std::int64_t{shape.max_sequences} * shape.pages_per_sequence;
  }
  void clear_shadow() {
    uploaded_.assign(static_cast<std::size_t>(num_pages(shape_)), -1);
    uploaded_pending_.assign(static_cast<std::size_t>(shape_.max_sequences), -1);
  }

  EngineShape shape_;
  std::int32_t* device_page_table_;
  std::int32_t* device_pending_rows_;
  std::vector<std::int32_t> uploaded_;          // what the device has; -1: nothing yet
  std::vector<std::int32_t> uploaded_pending_;  // likewise
};

class BatchArrays {
 public:
  // `tables` must outlive this.
  BatchArrays(PartAllocator& allocator, const EngineShape& shape, SlotTables& tables)
      : shape_(shape),
        tables_(tables),
        host_(arrays_at(allocator.take(parts::kHostTables, bytes(shape)))),
        device_(arrays_at(allocator.take(parts::kActivations, bytes(shape)))) {}

  void clear(ops::RowClass row_class) {
    row_class_ = row_class;
    num_rows_ = 0;
    num_segments_ = 0;
  }
  // Opens a segment; its rows follow.
  void add_segment(int slot, int start_position, bool ends_prompt = false) {
    TANDEM_CHECK(num_segments_ < shape_.max_sequences);
    host_.segments[num_segments_++] = {.slot = slot,
                                       .first_row = num_rows_,
                                       .num_rows = 0,
                                       .start_position = start_position,
                                       .ends_prompt = ends_prompt ? 1 : 0};
  }
  void add_row(std::int32_t token) {
    TANDEM_CHECK(num_rows_ < shape_.max_rows && num_segments_ > 0);
    auto& segment = host_.segments[num_segments_ - 1];
    host_.token_ids[num_rows_] = token;
    host_.positions[num_rows_] = segment.start_position + segment.num_rows;
    host_.row_slots[num_rows_] = segment.slot;
    ++segment.num_rows;
    ++num_rows_;
  }

  int num_rows() const { return num_rows_; }
  int num_segments() const { return num_segments_; }
  const ops::Segment& segment(int i) const { return host_.segments[i]; }

  // Enqueues the copies of all that a pass reads; what it says is what kernels see from then on.
  ops::BatchView upload(Backend& backend) {
    backend.copy(device_.segments, host_.segments, bytes(shape_));
    tables_.upload_pending_rows(backend);
    for (int i = 0; i < num_segments_; ++i) {
      const auto& s = segment(i);
      const int end = s.start_position + s.num_rows;
      tables_.upload_pages(backend, s.slot, (end + shape_.page_tokens - 1) / shape_.page_tokens);
    }
    return view();
  }
  // As uploaded.
  ops::BatchView view() const { return view(row_class_, num_rows_, num_segments_); }
  // A pass over generated rows that operators lay out on the device, in device_rows().
  ops::BatchView view_of_places(int num_places, int rows) const {
    TANDEM_CHECK(num_places <= shape_.max_sequences && num_places * rows <= shape_.max_rows);
    return view(ops::RowClass::kGenerated, num_places * rows, num_places);
  }
  const ops::RowArrays& device_rows() const { return device_; }

 private:
  ops::BatchView view(ops::RowClass row_class, int num_rows, int num_segments) const {
    return {.row_class = row_class,
            .num_rows = num_rows,
            .num_segments = num_segments,
            .token_ids = device_.token_ids,
            .positions = device_.positions,
            .row_slots = device_.row_slots,
            .segments = device_.segments,
            .page_table = tables_.device_page_table(),
            .pages_per_sequence = shape_.pages_per_sequence,
            .page_tokens = shape_.page_tokens,
            .pending_rows = tables_.device_pending_rows()};
  }
  static std::size_t bytes(const EngineShape& shape) {
    return sizeof(ops::Segment) * static_cast<std::size_t>(shape.max_sequences) +
           3 * sizeof(std::int32_t) * static_cast<std::size_t>(shape.max_rows);
  }
  // One block, so that one copy will do.
  ops::RowArrays arrays_at(void* block) const {
    if (block == nullptr) return {};
    ops::RowArrays arrays;
    arrays.segments = static_cast<ops::Segment*>(block);
    arrays.token_ids = reinterpret_cast<std::int32_t*>(arrays.segments + shape_.max_sequences);
    arrays.positions = arrays.token_ids + shape_.max_rows;
    arrays.row_slots = arrays.positions + shape_.max_rows;
    return arrays;
  }

  EngineShape shape_;
  SlotTables& tables_;
  ops::RowArrays host_, device_;  // [max_rows], [max_sequences] segments
  ops::RowClass row_class_ = ops::RowClass::kPrompt;
  int num_rows_ = 0;
  int num_segments_ = 0;
};

}  // namespace tandem
