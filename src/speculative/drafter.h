// Proposes tokens for the target to verify. A drafter can change the speed of a run, never its
// tokens: whatever it proposes, a round emits what the target's own sampler draws (acceptance.h).
//
// All of a drafter's work is enqueued and takes its input from device memory, so that it can be
// recorded as a part of a round: what to draft behind lies in the slots (ops/verify.h), and so do
// the proposals.
#pragma once

#include <cstdint>

#include "kernels/ops/verify.h"
#include "layers/layer_context.h"
#include "models/batch_arrays.h"

namespace tandem {

class Drafter {
 public:
  virtual ~Drafter() = default;

  virtual int max_drafts() const = 0;
  // After the target's pass over prompt rows, which has uploaded `batch`: fills the drafter's own
  // cache for them. hidden [batch.num_rows, hidden_width].
  virtual void observe_prompt(const LayerContext& context, const BatchArrays& batch,
                              const void* hidden) = 0;

  // Where ops::verify lays out the rows that became certain, and the newest of each place.
  virtual const ops::RowArrays& certain_rows() const = 0;
  virtual std::int32_t* last_rows() const = 0;
  // After ops::verify: takes in the certain rows and makes the drafts that the slots want, at most
  // `depth`. hidden [places.num_places * places.rows, hidden_width] of the target's pass: row r
  // belongs to the position before certain row r's.
  virtual void follow_round(const LayerContext& context, const ops::RoundPlaces& places, int depth,
                            const void* hidden) = 0;
  // The same for slots whose prompts have just ended: one certain row each, the slot's last token,
  // and the number of drafts that the slot says.
  virtual void follow_prompt(const LayerContext& context, const ops::RoundPlaces& places,
                             int depth) = 0;

  virtual void reset_slot(Backend& backend, int slot) = 0;
  virtual void save_slot(Backend& backend, int slot, int snapshot) = 0;
  virtual void restore_slot(Backend& backend, int slot, int snapshot) = 0;
};

}  // namespace tandem
