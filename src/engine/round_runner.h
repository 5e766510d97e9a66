// The device's part of a round over generated rows: the target's pass, the logits, the choice of
// tokens. Where the backend can, it is recorded once for each shape at start and replayed from then
// on (on a GPU one graph launch instead of a thousand kernel launches); other shapes are enqueued
// one operator at a time, to the same bits.
#pragma once

#include <compare>
#include <map>
#include <memory>

#include "engine/device_program.h"

namespace tandem {

struct RoundShape {
  int num_rows = 0;
  int num_segments = 0;
  int num_sampled = 0;  // rows that yield a token, listed in DeviceProgram::logit_rows()
  SampleMethod method = SampleMethod::kArgmax;

  auto operator<=>(const RoundShape&) const = default;
};

class RoundRunner {
 public:
  // Borrows `program` and what `context` refers to.
  RoundRunner(const LayerContext& context, DeviceProgram& program);

  // Records the rounds that a job with these options makes: up to max_sequences sequences of
  // equally many rows each, at most max_rows. Overwrites slots and pages, so only before the first
  // request. Returns the number of recorded rounds.
  int record(int max_sequences, int max_rows, const SampleOptions& options);
  // The batch must have been uploaded and the sampler's parameters set.
  void run(const RoundShape& shape);

  // gather and logits for rows of the last pass, for passes that are not rounds.
  void enqueue_logits(int num_rows);

 private:
  void enqueue(const RoundShape& shape);

  LayerContext context_;
  DeviceProgram& program_;
  std::map<RoundShape, std::unique_ptr<RecordedWork>> recorded_;
};

}  // namespace tandem
