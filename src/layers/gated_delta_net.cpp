#include "layers/gated_delta_net.h"

#include <array>
#include <vector>

#include "kernels/ops/gated_delta_mix.h"

namespace tandem {
namespace {

std::vector<RowRange> even_rows(TensorParallel tp, std::int64_t n) {
  return {split_even(n, tp.rank, tp.size)};
}

// q, k and v are three segments of one tensor, each split by itself.
std::vector<RowRange> qkv_rows(TensorParallel tp, const GatedDeltaNetConfig& c) {
  const std::array<std::int64_t, 3> segments = {c.num_k_heads * c.k_dim, c.num_k_heads * c.k_dim,
                                                c.num_v_heads * c.v_dim};
  return split_segments(segments, tp.rank, tp.size);
}

std::int64_t all_channels(const GatedDeltaNetConfig& c) {
  return 2 * c.num_k_heads * c.k_dim + c.num_v_heads * c.v_dim;
}

ops::GdnShape local_shape(TensorParallel tp, const GatedDeltaNetConfig& c) {
  return {.num_k_heads = static_cast<int>(c.num_k_heads / tp.size),
          .num_v_heads = static_cast<int>(c.num_v_heads / tp.size),
          .k_dim = static_cast<int>(c.k_dim),
          .v_dim = static_cast<int>(c.v_dim)};
}

}  // namespace

GatedDeltaNet::GatedDeltaNet(WeightBinder& binder, PartAllocator& allocator,
                             const std::string& prefix, const GatedDeltaNetConfig& config,
                             const EngineShape& shape)
    : config_(config),
      shape_(local_shape(binder.tensor_parallel(), config)),
      max_round_rows_(shape.max_round_rows),
      activations_(shape.activations),
      qkv_(binder, prefix + "in_proj_qkv.weight", all_channels(config), config.hidden,
           qkv_rows(binder.tensor_parallel(), config)),
      z_(binder, prefix + "in_proj_z.weight", config.num_v_heads * config.v_dim, config.hidden,
         even_rows(binder.tensor_parallel(), config.num_v_heads * config.v_dim)),
      b_(binder, prefix + "in_proj_b.weight", config.num_v_heads, config.hidden,
         even_rows(binder.tensor_parallel(), config.num_v_heads)),
      a_(binder, prefix + "in_proj_a.weight", config.num_v_heads, config.hidden,
         even_rows(binder.tensor_parallel(), config.num_v_heads)),
      conv_weight_(binder.vector_f32(prefix + "conv1d.weight",
                                     {all_channels(config), 1, config.conv_kernel},
                                     qkv_rows(binder.tensor_parallel(), config))),
      a_log_(binder.vector_f32(prefix + "A_log", {config.num_v_heads},
                               even_rows(binder.tensor_parallel(), config.num_v_heads))),
      dt_bias_(binder.vector_f32(prefix + "dt_bias", {config.num_v_heads},
                                 even_rows(binder.tensor_parallel(), config.num_v_heads))),
      norm_weight_(binder.vector_f32(prefix + "norm.weight", {config.v_dim})),
      out_(binder, prefix + "out_proj.weight", config.hidden, config.num_v_heads * config.v_dim,
           config.num_v_heads) {
  const std::int64_t slots = shape.max_sequences;
  const std::int64_t rows = shape.max_round_rows;
  const auto element = static_cast<std::int64_t>(dtype_bytes(activations_));
  state_.max_round_rows = shape.max_round_rows;
  state_.s = allocator.take_array<float>(parts::kStates, slots * state_floats());
  state_.round_qkv = allocator.take(
      parts::kStates, static_cast<std::size_t>(slots * rows * shape_.channels() * element));
  state_.round_gates =
      allocator.take_array<float>(parts::kStates, slots * rows * 2 * shape_.num_v_heads);
  if (shape.open_blocks) {
    state_.open_block =
        allocator.take_array<float>(parts::kStates, slots * ops::gdn_open_block_floats(shape_));
  }
  window_ = allocator.take(parts::kStates, static_cast<std::size_t>(slots * window_bytes()));
  snapshot_s_ =
      allocator.take_array<float>(parts::kSnapshots, shape.num_snapshots * state_floats());
  snapshot_window_ = allocator.take(
      parts::kSnapshots, static_cast<std::size_t>(shape.num_snapshots * committed_window_bytes()));
}

std::int64_t GatedDeltaNet::state_floats() const {
  return 1LL * shape_.num_v_heads * shape_.k_dim * shape_.v_dim;
}

std::int64_t GatedDeltaNet::window_bytes() const {
  return (config_.conv_kernel - 1 + max_round_rows_) * shape_.channels() *
         static_cast<std::int64_t>(dtype_bytes(activations_));
}

std::int64_t GatedDeltaNet::committed_window_bytes() const {
  return (config_.conv_kernel - 1) * shape_.channels() *
         static_cast<std::int64_t>(dtype_bytes(activations_));
}

void GatedDeltaNet::prepack_weights(Backend& backend) {
  for (ColumnLinear* layer : {&qkv_, &z_, &b_, &a_}) layer->prepack_weights(backend);
  out_.prepack_weights(backend);
}

void GatedDeltaNet::forward(const LayerContext& context, const ops::BatchView& batch,
                            const LayerInput& in, float* out) const {
  const int rows = in.rows;
  const Scratch::Mark mark(context.scratch);
  const DType t = context.activations;
  const std::int64_t channels = shape_.channels();
  const std::int64_t value_width = 1LL * shape_.num_v_heads * shape_.v_dim;
  void* u = context.scratch.take(t, rows * channels);
  void* qkv = context.scratch.take(t, rows * channels);
  void* z = context.scratch.take(t, rows * value_width);
  float* b = context.scratch.take<float>(1LL * rows * shape_.num_v_heads);
  float* a = context.scratch.take<float>(1LL * rows * shape_.num_v_heads);
  float* o = context.scratch.take<float>(rows * value_width);
  void* rule_scratch = context.scratch.take_bytes(
      ops::gated_delta_rule_scratch_bytes(context.backend, shape_, rows));
  if (context.scratch.measuring()) return;

  forward_together(context, in,
                   {{qkv_, u, t}, {z_, z, t}, {b_, b, DType::kF32}, {a_, a, DType::kF32}});
  ops::gated_delta_mix(context.backend, {.conv = {.batch = batch,
                                                  .u = u,
                                                  .dtype = t,
                                                  .u_stride = channels,
                                                  .channels = static_cast<int>(channels),
                                                  .kernel = static_cast<int>(config_.conv_kernel),
                                                  .weight = conv_weight_,
                                                  .window = window_,
                                                  .max_round_rows = max_round_rows_,
                                                  .y = qkv},
                                         .rule = {.batch = batch,
                                                  .shape = shape_,
                                                  .qkv = qkv,
                                                  .dtype = t,
                                                  .a = a,
                                                  .b = b,
                                                  .a_log = a_log_,
                                                  .dt_bias = dt_bias_,
                                                  .state = state_,
                                                  .out = o,
                                                  .scratch = rule_scratch},
                                         .norm = {.o = o,
                                                  .z = z,
                                                  .dtype = t,
                                                  .weight = norm_weight_,
                                                  .eps = static_cast<float>(config_.eps),
                                                  .activation = config_.gate,
                                                  .num_rows = rows,
                                                  .num_heads = shape_.num_v_heads,
                                                  .width = shape_.v_dim,
                                                  .y = z}});
  out_.forward(context, z, rows, out);
}

void GatedDeltaNet::reset_slot(Backend& backend, int slot) const {
  backend.zero(state_.s + slot * state_floats(),
               static_cast<std::size_t>(state_floats()) * sizeof(float));
  backend.zero(static_cast<std::byte*>(window_) + slot * window_bytes(),
               static_cast<std::size_t>(window_bytes()));
}

void GatedDeltaNet::save_slot(Backend& backend, int slot, int snapshot) const {
  backend.copy(snapshot_s_ + snapshot * state_floats(), recurrent_state(slot).data,
               static_cast<std::size_t>(state_floats()) * sizeof(float));
  backend.copy(static_cast<std::byte*>(snapshot_window_) + snapshot * committed_window_bytes(),
               window(slot).data, static_cast<std::size_t>(committed_window_bytes()));
}

void GatedDeltaNet::restore_slot(Backend& backend, int slot, int snapshot) const {
  backend.copy(state_.s + slot * state_floats(), snapshot_s_ + snapshot * state_floats(),
               static_cast<std::size_t>(state_floats()) * sizeof(float));
  backend.copy(static_cast<std::byte*>(window_) + slot * window_bytes(),
               static_cast<std::byte*>(snapshot_window_) + snapshot * committed_window_bytes(),
               static_cast<std::size_t>(committed_window_bytes()));
}

TensorView GatedDeltaNet::recurrent_state(int slot) const {
  return {state_.s + slot * state_floats(),
          DType::kF32,
          {shape_.num_v_heads, shape_.k_dim, shape_.v_dim}};
}

TensorView GatedDeltaNet::window(int slot) const {
  return {static_cast<std::byte*>(window_) + slot * window_bytes(),
          activations_,
          {config_.conv_kernel - 1, shape_.channels()}};
}

}  // namespace tandem
