// A model family as the engine sees it: a forward pass over a batch of rows, logits, and per-slot
// state. The engine knows slots, pages and rows; what a family keeps for them (KV pages, recurrent
// states, windows, compressed caches, several residual streams) is the family's own business, so a
// family adds a file and a registry line and no branch in the loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/kv_scales.h"
#include "checkpoint/loader.h"
#include "checkpoint/model_config.h"
#include "kernels/ops/batch_view.h"
#include "layers/layer_context.h"
#include "layers/vocab.h"

namespace tandem {

// What a drafter reads of the target's forward pass, besides the tokens.
enum class DrafterInput {
  kNone,
  kFinalHidden,  // the value fed to the head (Qwen3.8's MTP head)
};

// The target model's own multi-token-prediction head (DeepSeek-V3 report, section 2.2; qwen.md 13).
// Row i of its batch is token x_i with the target's hidden state of position i-1; it predicts
// x_{i+1}. Its cache entry is kept at index i: it depends on tokens up to x_i only, so pages shared
// by a common prefix are valid for the head as well.
class MtpHead {
 public:
  virtual ~MtpHead() = default;
  virtual int hidden_width() const = 0;
  // hidden [rows, hidden_width] of the previous positions -> hidden_out [rows, hidden_width], which
  // is both the input of the model's head and the hidden state of the next draft step.
  virtual void forward(const LayerContext& context, const ops::BatchView& batch, const void* hidden,
                       void* hidden_out) = 0;
};

// One array that a slot keeps between passes, this rank's part of it. For tests and checksums.
struct SlotState {
  std::string name;  // "layer3.recurrent", "layer3.window"
  TensorView view;
};

// Called with each intermediate value of the residual stream, for tests: -1 is the embedding, i the
// residual after layer i, num_layers the value fed to the head.
using LayerObserver = std::function<void(int layer, const TensorView& value)>;

class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelConfig& config() const = 0;
  virtual const VocabShard& vocab_shard() const = 0;
  virtual int hidden_width() const = 0;

  // What to read from the checkpoint (destinations are set unless planned) and what to pass over.
  virtual const std::vector<TensorRequest>& weight_requests() const = 0;
  virtual std::vector<IgnorePattern> ignored_tensors() const = 0;
  // Once, when the requests have been filled, before the first pass (ops/linear.h).
  virtual void prepack_weights(Backend& backend) = 0;
  // What is known of the scales of an FP8 KV cache.
  virtual KvCalibration kv_calibration() const = 0;
  // Weights for which DeterminismLevel::kRankInvariant does not hold on this number of ranks.
  virtual const std::vector<std::string>& rank_dependent_weights() const = 0;

  // hidden [batch.num_rows, hidden_width] in the activations' type: the value fed to the head.
  virtual void forward(const LayerContext& context, const ops::BatchView& batch, void* hidden) = 0;
  // logits [rows, vocab_shard().padded_rows] fp32, this rank's part.
  virtual void logits(const LayerContext& context, const void* hidden, int rows, float* logits) = 0;
  // Lays out the activations of a pass of `rows` rows over a measuring scratch.
  virtual void measure_scratch(const LayerContext& context, int rows) = 0;

  // State of a slot at a fresh start and at committed prompt positions.
  virtual void reset_slot(Backend& backend, int slot) = 0;
  virtual void save_slot(Backend& backend, int slot, int snapshot) = 0;
  virtual void restore_slot(Backend& backend, int slot, int snapshot) = 0;

  // What the slot keeps, committed positions only (rows of a round in flight are not applied).
  virtual std::vector<SlotState> slot_states(int slot) = 0;

  // nullptr if the checkpoint has none or the engine asked for none.
  virtual MtpHead* mtp_head() = 0;

  void set_observer(LayerObserver observer) { observer_ = std::move(observer); }

 protected:
  LayerObserver observer_;
};

struct ModelOptions {
  EngineShape shape;
  UnitScales unit_scales = UnitScales::kRefuse;
  TensorParallel tensor_parallel;
  DrafterInput drafter_input = DrafterInput::kNone;
};

// Everything a family needs to build itself.
struct ModelInputs {
  const ModelConfig& config;
  const Checkpoint& checkpoint;  // for names; weights are read by the loader
  const WeightSource& weights;   // for how they are stored
  PartAllocator& allocator;
  Backend& backend;
  ModelOptions options;
};

// Builds the family of `config`. Throws Error{kConfiguration} if it cannot be split over the ranks.
std::unique_ptr<Model> make_model(const ModelInputs& inputs);

}  // namespace tandem
