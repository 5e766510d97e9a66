#include "engine/round_runner.h"

#include <algorithm>
#include <vector>

#include "kernels/ops/elementwise.h"

namespace tandem {
namespace {

// Bounds start-up time and the driver's memory for recorded work.
constexpr std::size_t kMaxRecorded = 128;

}  // namespace

RoundRunner::RoundRunner(const LayerContext& context, DeviceProgram& program)
    : context_(context), program_(program) {}

int RoundRunner::record(int max_sequences, int max_rows, const SampleOptions& options) {
  Backend& backend = context_.backend;
  if (!backend.can_record() || !context_.comm.capturable()) return 0;
  std::vector<SampleMethod> methods = {SampleMethod::kArgmax, SampleMethod::kGathered};
  if (options.logprobs) methods = {SampleMethod::kGatheredLogprobs};

  auto& batch = program_.batch();
  bool first = true;
  for (int rows = 1; rows <= max_rows; ++rows) {
    for (int sequences = 1; sequences <= max_sequences; ++sequences) {
      if (recorded_.size() + methods.size() > kMaxRecorded) break;
      batch.clear(ops::RowClass::kGenerated);
      for (int slot = 0; slot < sequences; ++slot) {
        batch.add_segment(slot, 0);
        for (int i = 0; i < rows; ++i) {
          program_.logit_rows()[batch.num_rows()] = batch.num_rows();
          batch.add_row(0);
        }
      }
      batch.upload(backend);
      for (const SampleMethod method : methods) {
        const RoundShape shape{batch.num_rows(), sequences, batch.num_rows(), method};
        // What is set up once by the first use of an operator must not be part of a recording.
        if (first) enqueue(shape);
        first = false;
        backend.synchronize();
        recorded_[shape] = backend.record([&] { enqueue(shape); });
      }
    }
  }
  backend.synchronize();
  return static_cast<int>(recorded_.size());
}

void RoundRunner::run(const RoundShape& shape) {
  const auto found = recorded_.find(shape);
  if (found == recorded_.end()) {
    enqueue(shape);
  } else {
    found->second->replay();
  }
}

void RoundRunner::enqueue(const RoundShape& shape) {
  program_.model().forward(context_, program_.batch().view(), program_.hidden());
  if (shape.num_sampled == 0) return;
  enqueue_logits(shape.num_sampled);
  program_.sampler().enqueue(context_, program_.logits(), shape.num_sampled, shape.method);
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
