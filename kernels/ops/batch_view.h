// How operators see the rows of one forward pass. All pointers are device-visible; the arrays are
// fixed for the life of the engine and refilled between steps, so a captured graph can replay them.
#pragma once

#include <cstdint>

namespace tandem::ops {

// Prompt rows and generated rows never share a forward pass: each class has kernels (and reduction
// orders) of its own, and a row keeps its class for life, also when recomputed after preemption.
enum class RowClass { kPrompt, kGenerated };

// Consecutive rows of one sequence.
struct Segment {
  std::int32_t slot = 0;       // index into every per-sequence table
  std::int32_t first_row = 0;  // in the batch
  std::int32_t num_rows = 0;
  std::int32_t start_position = 0;  // position of first_row in its sequence
  std::int32_t ends_prompt = 0;     // kPrompt: 1 if the last row is the last prompt token
};

// The arrays behind a view, for operators that lay out rows on the device.
struct RowArrays {
  std::int32_t* token_ids = nullptr;  // [rows]
  std::int32_t* positions = nullptr;  // [rows]
  std::int32_t* row_slots = nullptr;  // [rows]
  Segment* segments = nullptr;        // [segments]
};

// Passes over generated rows may be padded to a size that was recorded: a segment may have no rows,
// which leaves its slot's state alone, and a row of no segment has kNoPosition, token 0 and any
// slot. Such rows are computed where that is simplest, keep nothing and touch no other row.
inline constexpr std::int32_t kNoPosition = -1;

struct BatchView {
  RowClass row_class = RowClass::kPrompt;
  int num_rows = 0;
  int num_segments = 0;
  const std::int32_t* token_ids = nullptr;   // [num_rows]
  const std::int32_t* positions = nullptr;   // [num_rows]
  const std::int32_t* row_slots = nullptr;   // [num_rows], the slot of each row
  const Segment* segments = nullptr;         // [num_segments]
  const std::int32_t* page_table = nullptr;  // [max_sequences, pages_per_sequence], page ids
  int pages_per_sequence = 0;
  int page_tokens = 0;
  // [max_sequences] rows of the slot's previous round that were accepted but are not yet folded
  // into the recurrent state ("lazy commit"); 0 after a prompt chunk or a restore.
  const std::int32_t* pending_rows = nullptr;
};

}  // namespace tandem::ops
