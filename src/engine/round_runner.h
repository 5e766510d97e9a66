// A round over generated rows as one piece of work for the device: the target's pass over each
// slot's last token and drafts, the choice of tokens, verification, the drafter's catch-up and its
// steps, each of which takes its input from where the one before left it. Where the backend can, it
// is recorded once for each shape at start and replayed from then on (on a GPU one graph launch
// instead of a few thousand kernel launches); other shapes are enqueued one operator at a time, to
// the same bits.
//
// Shapes are few because rounds are padded: with empty places to one of a few numbers, and every
// place to the same number of rows.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/device_program.h"

namespace tandem {

struct RoundShape {
  int num_places = 0;
  int rows = 0;                          // of a place
  int depth = 0;                         // most drafts that a slot may want behind the round
  std::optional<SampleMethod> method{};  // none: what follows is known, nothing is sampled
  bool follows_prompt = false;           // only the drafter runs: its first drafts of a sequence

  auto operator<=>(const RoundShape&) const = default;
};

// What decides which shapes a job makes.
struct RoundShapes {
  int max_sequences = 0;
  int draft_tokens = 0;
  bool adaptive_depth = false;
  bool pad = false;  // also where nothing is recorded and padding only costs
  SampleOptions sample{};
};

// The shapes to record at start, most useful first; at most 128, which bounds start-up time and the
// driver's memory.
std::vector<RoundShape> recorded_shapes(const RoundShapes& job);

// Device memory that the plan sets aside for all of them, of a model of `num_layers` layers. An
// estimate of what the driver keeps for each operator; the log has what it really took.
std::int64_t recorded_bytes(const RoundShapes& job, std::int64_t num_layers);

class RoundRunner {
 public:
  // Borrows `program` and what `context` refers to.
  RoundRunner(const LayerContext& context, DeviceProgram& program, const RoundShapes& job);

  // Records recorded_shapes(). Returns their number; 0 where backend or collectives cannot.
  int record();

  // The next round of these slots: each has at most `rows` rows, draws as `method` says, and makes
  // at most `depth` drafts. Pages and joining slots must have been uploaded.
  void run(std::span<const std::int32_t> slots, int rows, int depth, SampleMethod method);
  // The same for slots that are computed again (RoundSlot::known_next).
  void run_known(std::span<const std::int32_t> slots, int rows, int depth);
  // First drafts of slots that have just joined behind their prompts. Nothing without a drafter.
  void draft_behind_prompts(std::span<const std::int32_t> slots, int depth);

  const RoundShapes& job() const { return job_; }
  // Whether rounds are padded to the shapes that are recorded.
  bool pads() const { return job_.pad || !recorded_.empty(); }
  // Row `i` of place `place` in the target's logits of the last run().
  int row_of(int place, int i) const { return place * last_rows_ + i; }

  // gather and logits for rows of the last pass, for passes that are not rounds.
  void enqueue_logits(int num_rows);

 private:
  void launch(std::span<const std::int32_t> slots, RoundShape shape, int depth);
  void enqueue(const RoundShape& shape);

  LayerContext context_;
  DeviceProgram& program_;
  RoundShapes job_;
  int last_rows_ = 1;
  std::map<RoundShape, std::unique_ptr<RecordedWork>> recorded_;
};

}  // namespace tandem
