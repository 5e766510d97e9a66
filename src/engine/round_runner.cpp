#include "engine/round_runner.h"

#include <algorithm>
#include <bit>

#include "kernels/ops/elementwise.h"

namespace tandem {
namespace {

constexpr std::size_t kMaxRecorded = 128;
// Of an operator in a recording: its arguments and the driver's own account of it.
constexpr std::int64_t kOperatorBytes = 2048;
// Of a layer, a head with the choice of tokens, or a drafter's step.
constexpr std::int64_t kLayerOperators = 16;

// 1, 2, 3, 4, 6, 8, 12, 16, 24, ... at most max_sequences.
int padded(int num_slots, int max_sequences) {
  const int power = static_cast<int>(std::bit_ceil(static_cast<unsigned>(num_slots)));
  const int between = power / 4 * 3;
  return std::min(num_slots <= between ? between : power, max_sequences);
}

}  // namespace

std::vector<RoundShape> recorded_shapes(const RoundShapes& job) {
  std::vector<SampleMethod> methods = {SampleMethod::kArgmax, SampleMethod::kGathered};
  if (job.sample.logprobs) methods = {SampleMethod::kGatheredLogprobs};
  std::vector<int> places;
  for (int n = 1; n <= job.max_sequences; n = places.back() + 1) {
    places.push_back(padded(n, job.max_sequences));
  }
  std::vector<RoundShape> shapes;
  const auto add = [&](const RoundShape& shape) {
    if (shapes.size() < kMaxRecorded) shapes.push_back(shape);
  };
  const int least_depth = job.adaptive_depth ? 0 : job.draft_tokens;
  for (int depth = job.draft_tokens; depth >= least_depth; --depth) {
    for (const SampleMethod method : methods) {
      for (const int n : places) {
        add({.num_places = n, .rows = depth + 1, .depth = depth, .method = method});
      }
    }
  }
  for (const int n : places) {
    if (job.draft_tokens == 0) break;
    add({.num_places = n, .rows = 1, .depth = job.draft_tokens, .follows_prompt = true});
  }
  return shapes;
}

std::int64_t recorded_bytes(const RoundShapes& job, std::int64_t num_layers) {
  std::int64_t layers = 0;
  for (const RoundShape& shape : recorded_shapes(job)) {
    layers += (shape.follows_prompt ? 1 : num_layers + 2) + 2 * shape.depth;
  }
  return layers * kLayerOperators * kOperatorBytes;
}

RoundRunner::RoundRunner(const LayerContext& context, DeviceProgram& program,
                         const RoundShapes& job)
    : context_(context), program_(program), job_(job) {}

int RoundRunner::record() {
  Backend& backend = context_.backend;
  if (!backend.can_record() || !context_.comm.capturable()) return 0;
  program_.rounds().order(backend, {}, job_.max_sequences, 0);  // empty places: nothing is written
  for (const RoundShape& shape : recorded_shapes(job_)) {
    // What is set up once by the first use of an operator must not be part of a recording.
    if (recorded_.empty()) enqueue(shape);
    backend.synchronize();
    recorded_[shape] = backend.record([&] { enqueue(shape); });
  }
  backend.synchronize();
  return static_cast<int>(recorded_.size());
}

void RoundRunner::run(std::span<const std::int32_t> slots, int rows, int depth,
                      SampleMethod method) {
  RoundShape shape{.rows = rows, .depth = depth, .method = method};
  if (pads()) {
    // As many rows and drafts as the other asks for: combinations of their own are not recorded.
    // What is too much is padding, or a draft that no slot wants.
    shape.rows = std::max(rows, depth + 1);
    shape.depth = shape.rows - 1;
  }
  last_rows_ = shape.rows;
  launch(slots, shape, depth);
}

void RoundRunner::run_known(std::span<const std::int32_t> slots, int rows, int depth) {
  launch(slots, {.rows = rows, .depth = depth}, depth);
}

void RoundRunner::draft_behind_prompts(std::span<const std::int32_t> slots, int depth) {
  if (program_.drafter() == nullptr) return;
  const int most = pads() ? job_.draft_tokens : depth;
  launch(slots, {.rows = 1, .depth = most, .follows_prompt = true}, depth);
}

void RoundRunner::launch(std::span<const std::int32_t> slots, RoundShape shape, int depth) {
  const int num_slots = static_cast<int>(slots.size());
  shape.num_places = pads() ? padded(num_slots, job_.max_sequences) : num_slots;
  program_.tables().upload_pending_rows(context_.backend);
  program_.rounds().order(context_.backend, slots, shape.num_places, depth);
  const auto found = recorded_.find(shape);
  if (found == recorded_.end()) {
    enqueue(shape);
  } else {
    found->second->replay();
  }
}

void RoundRunner::enqueue(const RoundShape& shape) {
  Backend& backend = context_.backend;
  Drafter* drafter = program_.drafter();
  const ops::RoundPlaces places = program_.rounds().places(shape.num_places, shape.rows);
  if (shape.follows_prompt) return drafter->follow_prompt(context_, places, shape.depth);

  auto& batch = program_.batch();
  const int num_rows = shape.num_places * shape.rows;
  ops::SampleParams* params = shape.method ? program_.round_params() : nullptr;
  ops::lay_out_round(backend, {.places = places, .out = batch.device_rows(), .params = params});
  program_.model().forward(context_, batch.view_of_places(shape.num_places, shape.rows),
                           program_.hidden());
  ops::VerifyArgs verify =
      program_.rounds().verify_args(places, program_.tables().device_pending_rows());
  if (shape.method) {
    program_.model().logits(context_, program_.hidden(), num_rows, program_.logits());
    program_.sampler().enqueue(context_, program_.logits(), num_rows, *shape.method, params);
    verify.sampled = program_.sampler().results();
  }
  if (drafter != nullptr) {
    verify.certain = drafter->certain_rows();
    verify.last_rows = drafter->last_rows();
  }
  ops::verify(backend, verify);
  if (drafter != nullptr) {
    drafter->follow_round(context_, places, shape.depth, program_.hidden());
  }
}

void RoundRunner::enqueue_logits(int num_rows) {
  auto& model = program_.model();
  const std::int64_t row_bytes =
      model.hidden_width() * static_cast<std::int64_t>(dtype_bytes(context_.activations));
  ops::gather_rows(context_.backend, {.x = program_.hidden(),
                                      .rows = program_.logit_rows(),
                                      .num_rows = num_rows,
                                      .row_bytes = row_bytes,
                                      .y_stride_bytes = row_bytes,
                                      .y = program_.head_input()});
  model.logits(context_, program_.head_input(), num_rows, program_.logits());
}

}  // namespace tandem
