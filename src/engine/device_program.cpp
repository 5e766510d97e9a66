#include "engine/device_program.h"

#include <iterator>

#include "parallel/device_comm.h"
#include "speculative/mtp.h"

namespace tandem {
namespace {

std::size_t row_bytes(const Model& model, DType dtype, std::int64_t rows) {
  return static_cast<std::size_t>(rows * model.hidden_width()) * dtype_bytes(dtype);
}

Scratch take_scratch(PartAllocator& allocator, Model& model, Backend& backend,
                     const EngineShape& shape) {
  Scratch measure;
  const auto comm = make_single_device_comm();  // not used: measuring stops before any work
  const LayerContext context{backend, *comm, measure, shape.activations};
  model.measure_scratch(context, shape.max_rows);
  return Scratch(allocator.take(parts::kActivations, measure.peak()), measure.peak());
}

}  // namespace

DeviceProgram::DeviceProgram(PartAllocator& allocator, const DeviceProgramInputs& in)
    : tables_(allocator, in.limits.shape),
      batch_(allocator, in.limits.shape, tables_),
      rounds_(allocator, in.limits.shape, std::ssize(in.config.stop_ids)),
      model_(make_model({.config = in.config,
                         .checkpoint = in.checkpoint,
                         .weights = in.weights,
                         .allocator = allocator,
                         .backend = in.backend,
                         .options = {.shape = in.limits.shape,
                                     .unit_scales = in.limits.unit_scales,
                                     .tensor_parallel = in.tensor_parallel,
                                     .drafter_input = drafter_input(in.limits)}})),
      max_logit_rows_(in.limits.shape.max_sequences * (in.limits.draft_tokens + 1)) {
  const auto& shape = in.limits.shape;
  sampler_ = std::make_unique<Sampler>(allocator, in.backend, model_->vocab_shard(),
                                       in.tensor_parallel.size, in.valid_vocab, max_logit_rows_);
  if (in.limits.method == SpeculativeMethod::kMtp) {
    drafter_ = std::make_unique<MtpDrafter>(allocator, *model_, *sampler_, shape, tables_,
                                            in.limits.draft_tokens);
  }
  hidden_ =
      allocator.take(parts::kActivations, row_bytes(*model_, shape.activations, shape.max_rows));
  head_input_ =
      allocator.take(parts::kActivations, row_bytes(*model_, shape.activations, max_logit_rows_));
  logits_ = allocator.take_array<float>(parts::kActivations,
                                        max_logit_rows_ * model_->vocab_shard().padded_rows);
  logit_rows_ = allocator.take_array<std::int32_t>(parts::kHostTables, max_logit_rows_);
  round_params_ = allocator.take_array<ops::SampleParams>(parts::kActivations, max_logit_rows_);
  scratch_ = take_scratch(allocator, *model_, in.backend, shape);
}

void DeviceProgram::reset_slot(Backend& backend, int slot) {
  model_->reset_slot(backend, slot);
  if (drafter_) drafter_->reset_slot(backend, slot);
}

void DeviceProgram::save_slot(Backend& backend, int slot, int snapshot) {
  model_->save_slot(backend, slot, snapshot);
  if (drafter_) drafter_->save_slot(backend, slot, snapshot);
}

void DeviceProgram::restore_slot(Backend& backend, int slot, int snapshot) {
  model_->restore_slot(backend, slot, snapshot);
  if (drafter_) drafter_->restore_slot(backend, slot, snapshot);
}

}  // namespace tandem
