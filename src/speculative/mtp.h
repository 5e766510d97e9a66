// Drafting with the target's own multi-token-prediction head, applied recursively: the first draft
// comes from the target's hidden states, each further one from the head's own output of the draft
// before it (qwen.md, section 13.4).
//
// The head's cache entry for (x_i, hidden of position i-1) stands at index i. It follows that a
// prompt chunk needs no look-ahead (its first row uses the hidden state carried over from the chunk
// before), that pages shared through the prefix cache are valid as they are, and that the rows a
// round has verified simply overwrite what drafting wrote there.
#pragma once

#include <cstdint>
#include <span>

#include "memory/part_allocator.h"
#include "models/batch_arrays.h"
#include "models/model.h"
#include "sampling/sampler.h"
#include "speculative/drafter.h"

namespace tandem {

class MtpDrafter final : public Drafter {
 public:
  // Borrows model and sampler. max_drafts: any; the published head was trained for one token ahead
  // and loses acceptance with each further one.
  MtpDrafter(PartAllocator& allocator, Model& model, Sampler& sampler, const EngineShape& shape,
             SlotTables& tables, int max_drafts);

  int max_drafts() const override { return max_drafts_; }
  void observe_prompt(const LayerContext& context, const BatchArrays& batch,
                      const void* hidden) override;
  const ops::RowArrays& certain_rows() const override { return batch_.device_rows(); }
  std::int32_t* last_rows() const override { return last_rows_; }
  void follow_round(const LayerContext& context, const ops::RoundPlaces& places, int depth,
                    const void* hidden) override;
  void follow_prompt(const LayerContext& context, const ops::RoundPlaces& places,
                     int depth) override;
  void reset_slot(Backend& backend, int slot) override;
  void save_slot(Backend& backend, int slot, int snapshot) override;
  void restore_slot(Backend& backend, int slot, int snapshot) override;

 private:
  std::byte* row(void* array, std::int64_t i) const {
    return static_cast<std::byte*>(array) + i * row_bytes_;
  }
  // The drafts of all places, behind the head's output for their newest certain rows in newest_.
  void draft(const LayerContext& context, const ops::RoundPlaces& places, int depth);

  Model& model_;
  Sampler& sampler_;
  int max_drafts_;
  std::int64_t row_bytes_;
  BatchArrays batch_;
  void* carry_;           // [max_sequences, hidden] target's hidden state of the last prompt row
  void* snapshot_carry_;  // [num_snapshots, hidden]
  void* input_;           // [max_rows, hidden]
  void* output_;          // [max_rows, hidden]
  void* newest_;          // [max_sequences, hidden] the head's output of each place's newest token
  void* next_;            // [max_sequences, hidden] and of the draft behind it
  float* logits_;         // [max_sequences, padded vocabulary shard]
  std::int32_t* last_rows_;  // [max_sequences] row of each place's newest certain token
};

}  // namespace tandem
