// Everything of one rank that lies in the arenas: model, drafter, sampler, tables and the buffers
// of a pass. Built twice by the same code: on a CountingAllocator for the plan, then on memory.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/engine_limits.h"
#include "memory/part_allocator.h"
#include "models/batch_arrays.h"
#include "models/model.h"
#include "models/round_tables.h"
#include "sampling/sampler.h"
#include "speculative/drafter.h"

namespace tandem {

struct DeviceProgramInputs {
  const EngineLimits& limits;
  const ModelConfig& config;
  const Checkpoint& checkpoint;
  const WeightSource& weights;
  TensorParallel tensor_parallel;
  std::int64_t valid_vocab = 0;  // ids from here on belong to no token
  Backend& backend;
};

class DeviceProgram {
 public:
  DeviceProgram(PartAllocator& allocator, const DeviceProgramInputs& inputs);

  Model& model() { return *model_; }
  Drafter* drafter() { return drafter_.get(); }  // nullptr without speculation
  Sampler& sampler() { return *sampler_; }
  BatchArrays& batch() { return batch_; }
  SlotTables& tables() { return tables_; }
  RoundTables& rounds() { return rounds_; }
  Scratch& scratch() { return scratch_; }

  void* hidden() const { return hidden_; }                  // [max_rows, hidden], of the last pass
  void* head_input() const { return head_input_; }          // [max_logit_rows, hidden]
  float* logits() const { return logits_; }                 // [max_logit_rows, padded shard]
  std::int32_t* logit_rows() const { return logit_rows_; }  // [max_logit_rows]
  ops::SampleParams* round_params() const { return round_params_; }  // [max_logit_rows]
  int max_logit_rows() const { return max_logit_rows_; }

  void reset_slot(Backend& backend, int slot);
  void save_slot(Backend& backend, int slot, int snapshot);
  void restore_slot(Backend& backend, int slot, int snapshot);

 private:
  SlotTables tables_;
  BatchArrays batch_;
  RoundTables rounds_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Sampler> sampler_;
  std::unique_ptr<Drafter> drafter_;
  int max_logit_rows_;
  void* hidden_;
  void* head_input_;
  float* logits_;
  std::int32_t* logit_rows_;
  ops::SampleParams* round_params_;
  Scratch scratch_;
};

}  // namespace tandem
