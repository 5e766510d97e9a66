// Proposes tokens for the target to verify. A drafter can change the speed of a run, never its
// tokens: whatever it proposes, a round emits what the target's own sampler draws (verifier.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layers/layer_context.h"
#include "models/batch_arrays.h"

namespace tandem {

// One sequence's part of a drafting step: tokens that became certain since the drafter last ran,
// and how many to propose behind them.
struct DraftRequest {
  // Hidden states of the prompt's last row, kept by the drafter, instead of a row of the pass.
  static constexpr int kCarriedHidden = -1;

  int slot = 0;
  int first_position = 0;                // of tokens[0]
  std::span<const std::int32_t> tokens;  // at least one
  // Row of the target's pass that holds the hidden state of position first_position - 1; the
  // following tokens use the following rows.
  int first_hidden_row = kCarriedHidden;
  int num_drafts = 0;
  std::vector<std::int32_t>* drafts = nullptr;  // out, num_drafts proposals
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  virtual int max_drafts() const = 0;
  // After the target's pass over prompt rows, which has uploaded `batch`: fills the drafter's own
  // cache for them. hidden [batch.num_rows, hidden_width].
  virtual void observe_prompt(const LayerContext& context, const BatchArrays& batch,
                              const void* hidden) = 0;
  // hidden: the target's last pass.
  virtual void draft(const LayerContext& context, std::span<const DraftRequest> requests,
                     const void* hidden) = 0;

  virtual void reset_slot(Backend& backend, int slot) = 0;
  virtual void save_slot(Backend& backend, int slot, int snapshot) = 0;
  virtual void restore_slot(Backend& backend, int slot, int snapshot) = 0;
};

}  // namespace tandem
