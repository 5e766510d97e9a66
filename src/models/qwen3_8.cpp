// Qwen3.8 (dense), qwen.md sections 1.1, 3-6 and 13.1:
//
//   h = embed[token]
//   for each layer:  h += mixer( RMS1(h) );   h += MLP( RMS1(h) )      mixer = GDN or attention
//   x = RMS1(h);     logits = lm_head x
//
// and its MTP head, for (x_i, hidden of position i-1):
//   z = fc [ RMS1(embed x_i) ; RMS1(hidden) ];  one attention layer with MLP;  RMS1(z)
//
// The residual stream is kept in the activations' type; what is added to it comes out of an
// all-reduce in fp32 and is folded in by the norm that follows, with one rounding.
#include "models/qwen3_8.h"

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/log.h"
#include "kernels/ops/check.h"
#include "kernels/ops/rms_norm.h"
#include "layers/full_attention.h"
#include "layers/gated_delta_net.h"
#include "layers/mlp.h"
#include "layers/vocab.h"

namespace tandem {
namespace {

AttentionConfig attention_config(const ModelConfig& c, ops::KvFormat kv_format) {
  return {.hidden = c.hidden_size,
          .num_heads = c.num_attention_heads,
          .num_kv_heads = c.num_key_value_heads,
          .head_dim = c.head_dim,
          .rotary_dim = c.rotary_dim,
          .rope_theta = c.rope_theta,
          .eps = c.rms_norm_eps,
          .kv_format = kv_format};
}

// The head's entry for (x_i, hidden of position i-1) stands at index i and is rotated by i-1; index
// 0 has no predecessor and stays empty.
AttentionConfig mtp_attention_config(const ModelConfig& c, ops::KvFormat kv_format) {
  AttentionConfig a = attention_config(c, kv_format);
  a.rope_offset = -1;
  a.first_index = 1;
  return a;
}

GatedDeltaNetConfig delta_net_config(const ModelConfig& c) {
  return {.hidden = c.hidden_size,
          .num_k_heads = c.linear_num_key_heads,
          .num_v_heads = c.linear_num_value_heads,
          .k_dim = c.linear_key_head_dim,
          .v_dim = c.linear_value_head_dim,
          .conv_kernel = c.linear_conv_kernel_dim,
          .eps = c.rms_norm_eps,
          .gate = c.output_gate == OutputGate::kSilu ? ops::GateActivation::kSilu
                                                     : ops::GateActivation::kSigmoid};
}

// One decoder layer. The residual stream is normed by whoever updates it: `forward` receives x, the
// normed input, and leaves its last contribution in `delta` for the next norm to fold in.
struct DecoderLayer {
  const float* input_norm;  // [hidden]
  std::variant<GatedDeltaNet, FullAttention> mixer;
  const float* post_attention_norm;  // [hidden]
  GatedMlp mlp;
};

DecoderLayer make_layer(WeightBinder& binder, const ModelInputs& in, const std::string& prefix,
                        LayerType type, const AttentionConfig& attention) {
  const auto& c = in.config;
  const auto mixer = [&]() -> std::variant<GatedDeltaNet, FullAttention> {
    if (type == LayerType::kLinearAttention) {
      return GatedDeltaNet(binder, in.allocator, prefix + "linear_attn.", delta_net_config(c),
                           in.options.shape);
    }
    return FullAttention(binder, in.allocator, &in.backend, prefix + "self_attn.", attention,
                         in.options.shape);
  };
  const float* input_norm = binder.vector_f32(prefix + "input_layernorm.weight", {c.hidden_size});
  return {input_norm, mixer(),
          binder.vector_f32(prefix + "post_attention_layernorm.weight", {c.hidden_size}),
          GatedMlp(binder, prefix + "mlp.", c.hidden_size, c.intermediate_size)};
}

void prepack_layer(Backend& backend, DecoderLayer& layer) {
  std::visit([&](auto& mixer) { mixer.prepack_weights(backend); }, layer.mixer);
  layer.mlp.prepack_weights(backend);
}

// Buffers of one forward pass that live across its layers.
struct Stream {
  void* residual;  // [rows, hidden]
  void* x;         // [rows, hidden], normed but for their factors
  float* factors;  // [rows]
  float* delta;    // [rows, hidden], not yet folded into the residual
  int rows;

  LayerInput input() const { return {.x = x, .row_factors = factors, .rows = rows}; }
};

Stream take_stream(const LayerContext& context, int rows, std::int64_t hidden) {
  return {.residual = context.scratch.take(context.activations, rows * hidden),
          .x = context.scratch.take(context.activations, rows * hidden),
          .factors = context.scratch.take<float>(rows),
          .delta = context.scratch.take<float>(rows * hidden),
          .rows = rows};
}

ops::ResidualRmsNormArgs norm_args(const LayerContext& context, const ModelConfig& config,
                                   const Stream& s, ops::ResidualUpdate update,
                                   const float* weight) {
  return {.residual = s.residual,
          .residual_dtype = context.activations,
          .delta = s.delta,
          .update = update,
          .weight = weight,
          .eps = static_cast<float>(config.rms_norm_eps),
          .num_rows = s.rows,
          .width = static_cast<int>(config.hidden_size)};
}

// residual <- residual + delta (or delta alone), out <- RMS1(residual)
void fold_and_norm(const LayerContext& context, const ModelConfig& config, const Stream& s,
                   ops::ResidualUpdate update, const float* weight, void* out) {
  auto args = norm_args(context, config, s, update, weight);
  args.y = out;
  ops::residual_rms_norm(context.backend, args);
}

// The same, but the norm becomes the input of layers.
void fold_and_norm(const LayerContext& context, const ModelConfig& config, const Stream& s,
                   ops::ResidualUpdate update, const float* weight) {
  auto args = norm_args(context, config, s, update, weight);
  args.y = s.x;
  args.row_factors = s.factors;
  ops::residual_rms_norm(context.backend, args);
}

// s.input() is the layer's normed input; afterwards s.delta is the MLP's contribution.
void layer_forward(const LayerContext& context, const ModelConfig& config,
                   const DecoderLayer& layer, const ops::BatchView& batch, const Stream& s) {
  std::visit([&](const auto& mixer) { mixer.forward(context, batch, s.input(), s.delta); },
             layer.mixer);
  if (!context.scratch.measuring()) {
    fold_and_norm(context, config, s, ops::ResidualUpdate::kAdd, layer.post_attention_norm);
  }
  layer.mlp.forward(context, s.input(), s.delta);
}

// Dummy weights may come without any weight file; then the names only seed the values.
std::string tensor_prefix(const Checkpoint& checkpoint) {
  return checkpoint.tensors().empty() ? "model." : text_tensor_prefix(checkpoint);
}

class Qwen38Mtp final : public MtpHead {
 public:
  Qwen38Mtp(WeightBinder& binder, const ModelInputs& in, const VocabEmbedding& embedding);

  void prepack_weights(Backend& backend);
  int hidden_width() const override { return static_cast<int>(config_.hidden_size); }
  void forward(const LayerContext& context, const ops::BatchView& batch, const void* hidden,
               void* hidden_out) override;

 private:
  ModelConfig config_;
  const VocabEmbedding& embedding_;
  ColumnLinear fc_;              // [hidden, 2 * hidden], replicated
  const float* embedding_norm_;  // [hidden]
  const float* hidden_norm_;     // [hidden]
  DecoderLayer layer_;
  const float* norm_;  // [hidden]
};

class Qwen38 final : public Model {
 public:
  explicit Qwen38(const ModelInputs& in);

  const ModelConfig& config() const override { return config_; }
  const VocabShard& vocab_shard() const override { return head_->shard(); }
  int hidden_width() const override { return static_cast<int>(config_.hidden_size); }
  const std::vector<TensorRequest>& weight_requests() const override { return requests_; }
  std::vector<IgnorePattern> ignored_tensors() const override;
  void prepack_weights(Backend& backend) override;
  KvCalibration kv_calibration() const override { return kv_calibration_; }
  const std::vector<std::string>& rank_dependent_weights() const override {
    return rank_dependent_;
  }
  void forward(const LayerContext& context, const ops::BatchView& batch, void* hidden) override;
  void logits(const LayerContext& context, const void* hidden, int rows, float* logits) override {
    head_->forward(context, hidden, rows, logits);
  }
  void measure_scratch(const LayerContext& context, int rows) override;
  void reset_slot(Backend& backend, int slot) override;
  void save_slot(Backend& backend, int slot, int snapshot) override;
  void restore_slot(Backend& backend, int slot, int snapshot) override;
  std::vector<SlotState> slot_states(int slot) override;
  MtpHead* mtp_head() override { return mtp_ ? &*mtp_ : nullptr; }

 private:
  template <typename F>
  void for_each_delta_net(F&& f) {
    for (auto& layer : layers_) {
      if (auto* gdn = std::get_if<GatedDeltaNet>(&layer.mixer)) f(*gdn);
    }
  }
  void observe(const LayerContext& context, int layer, const Stream& s, bool pending_delta);
  std::string layer_prefix(std::size_t layer) const {
    return prefix_ + "layers." + std::to_string(layer) + ".";
  }
  // kFp8Static: of each layer with attention. Checked as a whole, before any of them is built.
  std::map<std::size_t, KvScales> read_static_scales(const ModelInputs& in);

  ModelConfig config_;
  std::string prefix_;
  std::optional<VocabEmbedding> embedding_;
  std::vector<DecoderLayer> layers_;
  const float* norm_ = nullptr;  // [hidden]
  std::optional<LmHead> head_;
  std::optional<Qwen38Mtp> mtp_;
  std::vector<TensorRequest> requests_;
  std::vector<std::string> rank_dependent_;
  KvCalibration kv_calibration_ = KvCalibration::kNotNeeded;
};

Qwen38::Qwen38(const ModelInputs& in) : config_(in.config), prefix_(tensor_prefix(in.checkpoint)) {
  WeightBinder binder(in.allocator, in.options.tensor_parallel, in.weights, in.backend.kind());
  embedding_.emplace(binder, prefix_ + "embed_tokens.weight", config_.vocab_size,
                     config_.hidden_size);
  auto kv_scales = read_static_scales(in);
  for (std::size_t i = 0; i < config_.layer_types.size(); ++i) {
    AttentionConfig attention = attention_config(config_, in.options.shape.kv_format);
    if (const auto own = kv_scales.find(i); own != kv_scales.end())
      attention.kv_scales = own->second;
    layers_.push_back(make_layer(binder, in, layer_prefix(i), config_.layer_types[i], attention));
  }
  norm_ = binder.vector_f32(prefix_ + "norm.weight", {config_.hidden_size});
  if (config_.tie_word_embeddings) {
    head_.emplace(*embedding_);
  } else {
    head_.emplace(binder, "lm_head.weight", config_.vocab_size, config_.hidden_size);
  }
  if (in.options.drafter_input == DrafterInput::kFinalHidden && config_.mtp_num_hidden_layers > 0) {
    binder.set_part(parts::kDrafterWeights);
    mtp_.emplace(binder, in, *embedding_);
  }
  // Said once, not in each planning pass.
  const bool planning = norm_ == nullptr;
  if (const auto widened = binder.widened(); !widened.empty() && !planning) {
    log_warning("weights without a kernel for their format are widened to F32: {}", widened);
  }
  if (kv_calibration_ == KvCalibration::kUnit && !planning) {
    log_warning("the FP8 KV cache works with scales of 1.0, which nobody has calibrated");
  }
  rank_dependent_ = binder.take_rank_dependent();
  requests_ = binder.take_requests();
}

std::map<std::size_t, KvScales> Qwen38::read_static_scales(const ModelInputs& in) {
  if (in.options.shape.kv_format != ops::KvFormat::kFp8Static) return {};
  std::vector<std::size_t> layers;
  std::vector<std::string> prefixes;
  for (std::size_t i = 0; i < config_.layer_types.size(); ++i) {
    if (config_.layer_types[i] != LayerType::kFullAttention) continue;
    layers.push_back(i);
    prefixes.push_back(layer_prefix(i) + "self_attn.");
  }
  auto scales = in.weights.kv_scales(prefixes, config_.num_key_value_heads, in.options.unit_scales);
  kv_calibration_ = calibrated(scales) ? KvCalibration::kMeasured : KvCalibration::kUnit;
  std::map<std::size_t, KvScales> by_layer;
  for (std::size_t n = 0; n < layers.size(); ++n) by_layer[layers[n]] = std::move(scales[n]);
  return by_layer;
}

std::vector<IgnorePattern> Qwen38::ignored_tensors() const {
  std::vector<IgnorePattern> ignored = {{"model.visual.*", "the vision tower"}};
  if (!mtp_) ignored.push_back({"mtp.*", "the MTP head (no speculation asked for)"});
  if (config_.tie_word_embeddings)
    ignored.push_back({"lm_head.weight", "the head (tied to the embedding)"});
  return ignored;
}

void Qwen38::prepack_weights(Backend& backend) {
  for (auto& layer : layers_) prepack_layer(backend, layer);
  head_->prepack_weights(backend);
  if (mtp_) mtp_->prepack_weights(backend);
}

void Qwen38::observe(const LayerContext& context, int layer, const Stream& s, bool pending_delta) {
  if (!observer_) return;
  const TensorView residual(s.residual, context.activations, {s.rows, config_.hidden_size});
  if (!pending_delta) {
    observer_(layer, residual);
    return;
  }
  // The stream as the next norm will see it; the model's own copy stays as it is.
  const Scratch::Mark mark(context.scratch);
  const std::int64_t count = s.rows * config_.hidden_size;
  Stream copy = s;
  copy.residual = context.scratch.take(context.activations, count);
  void* ignored = context.scratch.take(context.activations, count);
  context.backend.copy(copy.residual, s.residual,
                       static_cast<std::size_t>(count) * dtype_bytes(context.activations));
  fold_and_norm(context, config_, copy, ops::ResidualUpdate::kAdd, norm_, ignored);
  observer_(layer, TensorView(copy.residual, context.activations, {s.rows, config_.hidden_size}));
}

void Qwen38::forward(const LayerContext& caller, const ops::BatchView& batch, void* hidden) {
  const LayerContext context = caller.of_rows(batch.row_class);
  const Scratch::Mark mark(context.scratch);
  const Stream s = take_stream(context, batch.num_rows, config_.hidden_size);
  embedding_->forward(context, batch.token_ids, s.rows, s.delta);
  auto update = ops::ResidualUpdate::kReplace;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    fold_and_norm(context, config_, s, update, layers_[i].input_norm);
    if (i == 0) observe(context, -1, s, false);
    layer_forward(context, config_, layers_[i], batch, s);
    update = ops::ResidualUpdate::kAdd;
    observe(context, static_cast<int>(i), s, true);
  }
  fold_and_norm(context, config_, s, update, norm_, hidden);
  if (observer_) {
    observer_(static_cast<int>(layers_.size()),
              TensorView(hidden, context.activations, {s.rows, config_.hidden_size}));
  }
}

void Qwen38::measure_scratch(const LayerContext& context, int rows) {
  TANDEM_CHECK(context.scratch.measuring());
  const Scratch::Mark mark(context.scratch);
  const Stream s = take_stream(context, rows, config_.hidden_size);
  const ops::BatchView none;
  for (const auto& layer : layers_) layer_forward(context, config_, layer, none, s);
  // An observer's copy of the stream.
  context.scratch.take(context.activations, rows * config_.hidden_size);
  context.scratch.take(context.activations, rows * config_.hidden_size);
  if (mtp_) {
    const Scratch::Mark mtp_mark(context.scratch);
    mtp_->forward(context, {.num_rows = rows}, nullptr, nullptr);
  }
}

void Qwen38::reset_slot(Backend& backend, int slot) {
  for_each_delta_net([&](GatedDeltaNet& layer) { layer.reset_slot(backend, slot); });
}

void Qwen38::save_slot(Backend& backend, int slot, int snapshot) {
  for_each_delta_net([&](GatedDeltaNet& layer) { layer.save_slot(backend, slot, snapshot); });
}

void Qwen38::restore_slot(Backend& backend, int slot, int snapshot) {
  for_each_delta_net([&](GatedDeltaNet& layer) { layer.restore_slot(backend, slot, snapshot); });
}

std::vector<SlotState> Qwen38::slot_states(int slot) {
  std::vector<SlotState> states;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const auto* gdn = std::get_if<GatedDeltaNet>(&layers_[i].mixer);
    if (gdn == nullptr) continue;
    const std::string name = "layer" + std::to_string(i);
    states.push_back({name + ".recurrent", gdn->recurrent_state(slot)});
    states.push_back({name + ".window", gdn->window(slot)});
  }
  return states;
}

Qwen38Mtp::Qwen38Mtp(WeightBinder& binder, const ModelInputs& in, const VocabEmbedding& embedding)
    : config_(in.config),
      embedding_(embedding),
      fc_(binder, "mtp.fc.weight", config_.hidden_size, 2 * config_.hidden_size, {}),
      embedding_norm_(binder.vector_f32("mtp.pre_fc_norm_embedding.weight", {config_.hidden_size})),
      hidden_norm_(binder.vector_f32("mtp.pre_fc_norm_hidden.weight", {config_.hidden_size})),
      layer_(make_layer(binder, in, "mtp.layers.0.", LayerType::kFullAttention,
                        mtp_attention_config(config_, in.options.shape.drafter_kv_format))),
      norm_(binder.vector_f32("mtp.norm.weight", {config_.hidden_size})) {}

void Qwen38Mtp::prepack_weights(Backend& backend) {
  fc_.prepack_weights(backend);
  prepack_layer(backend, layer_);
}

void Qwen38Mtp::forward(const LayerContext& caller, const ops::BatchView& batch, const void* hidden,
                        void* hidden_out) {
  const LayerContext context = caller.of_rows(batch.row_class);
  const Scratch::Mark mark(context.scratch);
  const Stream s = take_stream(context, batch.num_rows, config_.hidden_size);
  const std::int64_t h = config_.hidden_size;
  const auto element = static_cast<std::int64_t>(dtype_bytes(context.activations));
  // Embedding half first (qwen.md 13.1).
  void* joined = context.scratch.take(context.activations, s.rows * 2 * h);
  if (context.scratch.measuring()) {
    layer_forward(context, config_, layer_, batch, s);
    return;
  }
  const auto norm_half = [&](const void* x, DType x_dtype, const float* weight,
                             std::int64_t column) {
    ops::rms_norm(context.backend, {.x = x,
                                    .x_dtype = x_dtype,
                                    .x_stride = h,
                                    .weight = weight,
                                    .weight_kind = ops::NormWeight::kZeroCentered,
                                    .eps = static_cast<float>(config_.rms_norm_eps),
                                    .num_rows = s.rows,
                                    .width = static_cast<int>(h),
                                    .y = static_cast<std::byte*>(joined) + column * element,
                                    .y_dtype = context.activations,
                                    .y_stride = 2 * h});
  };
  embedding_.forward(context, batch.token_ids, s.rows, s.delta);
  norm_half(s.delta, DType::kF32, embedding_norm_, 0);
  norm_half(hidden, context.activations, hidden_norm_, h);
  fc_.forward(context, {.x = joined, .rows = s.rows}, s.delta, DType::kF32);
  fold_and_norm(context, config_, s, ops::ResidualUpdate::kReplace, layer_.input_norm);
  layer_forward(context, config_, layer_, batch, s);
  fold_and_norm(context, config_, s, ops::ResidualUpdate::kAdd, norm_, hidden_out);
}

std::string join(const std::vector<std::string>& faults) {
  std::string list;
  for (const auto& fault : faults) list += (list.empty() ? "" : "; ") + fault;
  return list;
}

// Throws with every dimension that the operators are not written for.
void check_dimensions(const ModelInputs& in) {
  const auto& c = in.config;
  std::vector<std::string> faults;
  const auto require = [&](const char* what, std::int64_t n, std::int64_t multiple,
                           std::int64_t most) {
    if (n % multiple == 0 && n <= most) return;
    faults.push_back(
        multiple == 1 ? fmt::format("{} {}, at most {}", what, n, most)
                      : fmt::format("{} {}, a multiple of {} up to {}", what, n, multiple, most));
  };
  if (c.num_layers_of(LayerType::kFullAttention) > 0 || c.mtp_num_hidden_layers > 0) {
    require("head_dim", c.head_dim, 16, ops::kMaxHeadDim);
    require("query heads of one key-value head", c.num_attention_heads / c.num_key_value_heads, 1,
            ops::kMaxHeadGroup);
  }
  if (c.num_layers_of(LayerType::kLinearAttention) > 0) {
    require("linear_key_head_dim", c.linear_key_head_dim, 16, ops::kMaxGdnDim);
    require("linear_value_head_dim", c.linear_value_head_dim, 16, ops::kMaxGdnDim);
    require("linear_conv_kernel_dim", c.linear_conv_kernel_dim, 1, ops::kMaxConvKernel);
  }
  if (faults.empty()) return;
  throw Error(ExitCode::kConfiguration, {.what = "this build has no kernels for " + join(faults),
                                         .where = in.checkpoint.directory().string(),
                                         .expected = "a model within these limits",
                                         .remedy = "use another checkpoint"});
}

// Throws with everything that does not divide.
void check_split(const ModelInputs& in) {
  const auto faults = qwen3_8_split_faults(in.config, in.options.tensor_parallel.size);
  if (faults.empty()) return;
  throw Error(ExitCode::kConfiguration,
              {.what = join(faults),
               .where = in.checkpoint.directory().string(),
               .expected = "a number of tensor-parallel ranks that divides the model",
               .remedy = "start another number of ranks (mpirun -np) or set parallel.data"});
}

}  // namespace

std::unique_ptr<Model> make_qwen3_8(const ModelInputs& inputs) {
  check_dimensions(inputs);
  check_split(inputs);
  return std::make_unique<Qwen38>(inputs);
}

}  // namespace tandem
