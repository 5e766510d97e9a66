// Rounds of a Gated DeltaNet layer in one kernel: convolution, delta rule and gated norm of all
// generated rows, to the bit as causal_conv.cu, gated_delta_recurrent.cu and gated_rms_norm.cu do
// them. The work of a round is small, so what counts is how often it waits for memory: everything
// that a block needs is asked for at once, as soon as it knows its segment, and the state last used
// is the first asked for.
//
// Value heads of one key head share its channels, and so does every block with columns of theirs.
// Each convolves them for itself. They overwrite what all of them read - the window, the replayed
// rows - only after a barrier of the cluster, which is passed long before anybody waits for it.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/gated_delta.cuh"
#include "kernels/cuda/gated_delta_columns.cuh"
#include "kernels/cuda/gated_delta_mix_plan.h"

namespace tandem::cuda {
namespace {

constexpr int kLanesOfColumn = 8;
using State = StateColumns<kLanesOfColumn>;
static_assert(State::kWarpColumns == kMixColumns && kLanesOfColumn * kLaneKeys == kMixDim);
static_assert(kWarp * kLaneColumns == kMixDim);  // a warp norms a key or query in one go

constexpr int kRowsAtOnce = 4;  // whose keys and queries are ready at a time
constexpr int kOldColumns = kMixTaps - 1;
constexpr int kKeyChannels = 2 * kMixDim;                                // query and key
constexpr int kMaxChannels = kKeyChannels + kMixMaxGroup * kMixColumns;  // of a block

template <class T>
struct MixArgs {
  const ops::Segment* segments;      // [segments]
  const std::int32_t* pending_rows;  // [slots]
  const T* u;                        // [rows, channels]
  const float* conv_weight;          // [channels, 4]
  T* window;                         // [slots, 3 + max_round_rows, channels]
  const float* a;                    // [rows, num_v_heads]
  const float* b;                    // [rows, num_v_heads]
  const float* a_log;                // [num_v_heads]
  const float* dt_bias;              // [num_v_heads]
  float* s;                          // [slots, num_v_heads, 128, 128]
  T* round_qkv;                      // [slots, max_round_rows, channels]
  float* round_gates;                // [slots, max_round_rows, 2, num_v_heads]
  const float* norm_weight;          // [128]
  const T* z;                        // [rows, num_v_heads, 128]
  T* y;                              // [rows, num_v_heads, 128]; may be z
  int channels, num_k_heads, num_v_heads, max_round_rows;
  float query_factor, eps;
};

// A block's channels: query and key of the key head, then 16 of each value head.
template <class T>
struct MixShared {
  alignas(16) T rows[2 * kMixMaxRows][kMaxChannels];  // convolved; replayed ones, then new ones
  alignas(16) T inputs[kOldColumns + kMixMaxRows][kMaxChannels];  // of the convolution
  float4 conv_weight[kMaxChannels];
  float k[kRowsAtOnce][kLanesOfColumn * kPaddedKeys];
  float q[kRowsAtOnce][kLanesOfColumn * kPaddedKeys];
  RowGate gates[kMixMaxGroup][2 * kMixMaxRows];
  // Of the row that this block norms:
  alignas(16) float o[kMixMaxGroup][kMixDim];
  alignas(16) T z[kMixMaxGroup][kMixDim];
  alignas(16) float norm_weight[kMixDim];
  Barrier o_complete;
};

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T at[4];
};

template <class T, ops::GateActivation kActivation>
class Mixer {
 public:
  __device__ Mixer(const MixArgs<T>& a, MixShared<T>& shared)
      : a_(a),
        shared_(shared),
        block_(static_cast<int>(blockIdx.x)),
        group_(static_cast<int>(blockDim.x) / kWarp),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        first_head_(static_cast<int>(blockIdx.y) * group_),
        v_head_(first_head_ + warp_),
        part_(State::part(lane_)),
        column_(block_ * kMixColumns + State::column(lane_)),
        value_channel_(kKeyChannels + warp_ * kMixColumns) {}

  // Everything that no kernel writes.
  __device__ void begin() {
#pragma unroll 1
    for (int c = static_cast<int>(threadIdx.x); c < kKeyChannels + group_ * kMixColumns;
         c += group_ * kWarp) {
      copy_async16(&shared_.conv_weight[c], a_.conv_weight + place(c) * kMixTaps, true);
    }
    if (threadIdx.x < kMixDim / 4) {
      copy_async16(shared_.norm_weight + threadIdx.x * 4, a_.norm_weight + threadIdx.x * 4, true);
    }
    a_log_ = a_.a_log[v_head_];
    dt_bias_ = a_.dt_bias[v_head_];
    if (threadIdx.x == 0) {
      shared_.o_complete.init(1);
      publish_barriers();
    }
    // Else each would be looked up, and waited for, where it is used first.
    asm volatile("" ::"l"(a_.segments), "l"(a_.a), "l"(a_.z), "r"(a_.channels), "f"(a_.eps));
  }

  __device__ void run() {
    segment_ = a_.segments[blockIdx.z];
    if (segment_.num_rows == 0) return wait_for_copies();  // all of the cluster
    const std::int64_t head = std::int64_t{segment_.slot} * a_.num_v_heads + v_head_;
    float* state = a_.s + (head * kMixDim + part_ * kLaneKeys) * kMixDim + column_;
    s_.load(state, kMixDim, true);
    pending_ = a_.pending_rows[segment_.slot];
    stage_rows();
    const GdnGate gate = load_gate();
    wait_for_copies();
    cluster_arrive();  // this block has begun, and has read what the others are going to overwrite
    __syncthreads();
    if (threadIdx.x == 0 && norms_row()) {
      shared_.o_complete.arrive_and_expect(group_ * kMixDim * static_cast<int>(sizeof(float)));
    }

    const int rows = pending_ + segment_.num_rows;
#pragma unroll 1
    for (int first = 0; first < rows; first += kRowsAtOnce) {
      const int n = min(kRowsAtOnce, rows - first);
      if (first > 0) __syncthreads();  // keys and queries before have been used
      prepare(first, n);
      __syncthreads();
      if (first == 0) cluster_wait();
#pragma unroll 1
      for (int i = 0; i < n; ++i) step(first + i, i, state);
    }
    write_back(gate);
    if (norms_row()) norm_row();
  }

 private:
  // This thread's.
  static __device__ __forceinline__ void wait_for_copies() {
    commit_async();  // those that belong to no group are not waited for
    wait_async<0>();
  }

  // Where the block's channel c lies in a row of all channels.
  __device__ int place(int c) const {
    const int keys = a_.num_k_heads * kMixDim;
    const int k_head = static_cast<int>(blockIdx.y);
    if (c < kKeyChannels) return (c < kMixDim ? 0 : keys - kMixDim) + k_head * kMixDim + c;
    const int value = c - kKeyChannels;
    return 2 * keys + (first_head_ + value / kMixColumns) * kMixDim + block_ * kMixColumns +
           value % kMixColumns;
  }

  // Calls function(c, place(c)) for pieces of the block's channels that a warp copies.
  template <class Function>
  __device__ __forceinline__ void for_pieces(bool with_keys, const Function& function) const {
    if (with_keys) {
#pragma unroll
      for (int n = 0; n < kKeyChannels / (kWarp * kPiece); ++n) {
        const int c = (n * kWarp + lane_) * kPiece;
        function(c, place(c));
      }
    }
    const int c = kKeyChannels + lane_ * kPiece;
    if (lane_ * kPiece < group_ * kMixColumns) function(c, place(c));
  }

  __device__ bool norms_row() const { return block_ < segment_.num_rows; }
  __device__ T* window() const {
    return a_.window +
           std::int64_t{segment_.slot} * (kOldColumns + a_.max_round_rows) * a_.channels;
  }
  __device__ T* record() const {
    return a_.round_qkv + std::int64_t{segment_.slot} * a_.max_round_rows * a_.channels;
  }
  __device__ float* recorded_gates(int row) const {
    return a_.round_gates +
           (std::int64_t{segment_.slot} * a_.max_round_rows + row) * 2 * a_.num_v_heads + v_head_;
  }
  // Of the warp's head in the row that this block norms.
  __device__ std::int64_t normed_values() const {
    return (std::int64_t{segment_.first_row + block_} * a_.num_v_heads + v_head_) * kMixDim;
  }

  // Replayed rows, the convolution's inputs, and the output gates of the row that this block norms.
  __device__ void stage_rows() {
    const int rows = pending_ + kOldColumns + segment_.num_rows;
    // In terms of j below.
    const T* window = this->window();
    const T* u = a_.u + std::int64_t{segment_.first_row - pending_ - kOldColumns} * a_.channels;
#pragma unroll 1
    for (int j = warp_; j < rows; j += group_) {
      const bool replayed = j < pending_;
      const T* from = (replayed                     ? record()
                       : j < pending_ + kOldColumns ? window
                                                    : u) +
                      j * a_.channels;
      T* to = replayed ? shared_.rows[j] : shared_.inputs[j - pending_];
      for_pieces(true, [&](int c, int place) { copy_async16(to + c, from + place, true); });
    }
    if (norms_row() && lane_ * kPiece < kMixDim) {
      copy_async16(shared_.z[warp_] + lane_ * kPiece, a_.z + normed_values() + lane_ * kPiece,
                   true);
    }
  }

  // A lane's row of the round.
  __device__ GdnGate load_gate() {
    GdnGate gate;
    if (lane_ >= pending_ + segment_.num_rows) return gate;
    if (lane_ < pending_) {
      const float* at = recorded_gates(lane_);
      gate = {at[0], at[a_.num_v_heads]};
    } else {
      const int i = (segment_.first_row + lane_ - pending_) * a_.num_v_heads + v_head_;
      gate = gate_of(a_.a[i], a_.b[i], a_log_, dt_bias_);
    }
    shared_.gates[warp_][lane_] = {expf(gate.g), gate.beta};
    return gate;
  }

  // Rows first .. first + n - 1 of the round: convolves the new ones; norms all keys, and the
  // queries of new rows. A warp takes its head's values of all rows, then a vector at a time.
  __device__ void prepare(int first, int n) {
    const int replayed = min(max(pending_ - first, 0), n);
    const int vectors = n + n - replayed;
#pragma unroll 1
    for (int vector = warp_ - group_; vector < vectors; vector += group_) {
      const bool is_value = vector < 0, is_query = vector >= n;
      const int i = is_value ? lane_ / 4 : is_query ? replayed + vector - n : vector;
      const int c =
          is_value ? value_channel_ + lane_ % 4 * 4 : (is_query ? 0 : kMixDim) + lane_ * 4;
      float4 x = make_float4(0, 0, 0, 0);
      if (i >= replayed && i < n) {
        x = convolve(first + i, c);
      } else if (!is_value) {
        x = widen4(shared_.rows[first + i] + c);
      }
      if (is_value) continue;
      const float unit = unit_factor(add_squares(x, 0));
      float* to = is_query ? shared_.q[i] : shared_.k[i];
      *reinterpret_cast<float4*>(to + padded_place(lane_ * 4)) =
          scaled(x, is_query ? unit * a_.query_factor : unit);
    }
  }

  // Channels c .. c + 3 of a new row, rounded.
  __device__ float4 convolve(int row, int c) {
    const auto* inputs = &shared_.inputs[row - pending_];
    float in[kMixTaps][4];
#pragma unroll
    for (int j = 0; j < kMixTaps; ++j) {
      const float4 x = widen4(inputs[j] + c);
      in[j][0] = x.x, in[j][1] = x.y, in[j][2] = x.z, in[j][3] = x.w;
    }
    Four<T> y;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float4 weight = shared_.conv_weight[c + e];
      const float taps[kMixTaps] = {weight.x, weight.y, weight.z, weight.w};
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kMixTaps; ++j) sum = fmaf(taps[j], in[j][e], sum);
      store_float(silu(sum), &y.at[e]);
    }
    *reinterpret_cast<Four<T>*>(shared_.rows[row] + c) = y;
    return make_float4(to_float(y.at[0]), to_float(y.at[1]), to_float(y.at[2]), to_float(y.at[3]));
  }

  // Row `row` of the round, whose key and query are in place i.
  __device__ void step(int row, int i, float* state) {
    const bool replayed = row < pending_;
    const float4 v = widen4(shared_.rows[row] + value_channel_ + State::column(lane_));
    const float4 out =
        s_.step(shared_.gates[warp_][row], shared_.k[i], shared_.q[i], v, part_, replayed);
    if (row == pending_ - 1) s_.store(state, kMixDim);
    if (replayed || part_ != 0) return;
    const int norming = row - pending_;
    send(out, address_in_block(shared_.o[warp_] + column_, norming),
         address_in_block(&shared_.o_complete, norming));
  }

  // The window and the record of the round. Queries and keys of a row are written by one block,
  // values by the block they belong to, gates by the first block.
  __device__ void write_back(const GdnGate& gate) {
    const int inputs = kOldColumns + segment_.num_rows;
    // In terms of j below.
    T* record = this->record() - std::int64_t{inputs} * a_.channels;
    T* window = this->window();
#pragma unroll 1
    for (int j = warp_; j < inputs + segment_.num_rows; j += group_) {
      const bool is_input = j < inputs;
      const T* from = is_input ? shared_.inputs[j] : shared_.rows[pending_ + j - inputs];
      T* to = (is_input ? window : record) + j * a_.channels;
      for_pieces(j % kMixBlocks == block_, [&](int c, int place) {
        *reinterpret_cast<int4*>(to + place) = *reinterpret_cast<const int4*>(from + c);
      });
    }
    const int row = lane_ - pending_;
    if (block_ == 0 && row >= 0 && row < segment_.num_rows) {
      float* to = recorded_gates(row);
      to[0] = gate.g;
      to[a_.num_v_heads] = gate.beta;
    }
  }

  // A warp its head of this block's row.
  __device__ void norm_row() {
    constexpr int kHeld = kMixDim / kWarp;
    const float* o = shared_.o[warp_] + lane_;
    const float* weight = shared_.norm_weight + lane_;
    float act[kHeld], values[kHeld];
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      const float gate = load_float(shared_.z[warp_] + lane_ + n * kWarp);
      act[n] = kActivation == ops::GateActivation::kSilu ? silu(gate) : sigmoid(gate);
    }
    wait_for_sent(shared_.o_complete, 0);
    float squares = 0;
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      values[n] = o[n * kWarp];
      squares = fmaf(values[n], values[n], squares);
    }
    const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(kMixDim) + a_.eps);
    T* y = a_.y + normed_values() + lane_;
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      store_float(weight[n * kWarp] * (values[n] * scale) * act[n], y + n * kWarp);
    }
  }

  static constexpr int kPiece = 16 / sizeof(T);  // elements that are copied at once

  const MixArgs<T>& a_;
  MixShared<T>& shared_;
  const int block_;  // of the cluster
  const int group_;  // value heads of the key head, one to a warp
  const int warp_, lane_;
  const int first_head_;  // of the group
  const int v_head_;
  const int part_;           // which keys
  const int column_;         // the first of the lane's four
  const int value_channel_;  // the first of the warp's 16
  float a_log_ = 0, dt_bias_ = 0;
  ops::Segment segment_;
  int pending_ = 0;
  State s_;
};

template <class T, ops::GateActivation kActivation>
__global__ void __launch_bounds__(kMixMaxGroup* kWarp) __cluster_dims__(kMixBlocks, 1, 1)
    gated_delta_mix_kernel(const __grid_constant__ MixArgs<T> a) {
  allow_next_kernel();
  extern __shared__ __align__(16) unsigned char mix_shared[];
  Mixer<T, kActivation> mixer(a, *reinterpret_cast<MixShared<T>*>(mix_shared));
  mixer.begin();
  wait_for_previous_kernel();
  mixer.run();
}

template <class T>
void run(const CudaBackend& backend, const ops::GatedDeltaMixArgs& args) {
  const auto& [conv, rule, norm] = args;
  const ops::GdnShape& shape = rule.shape;
  const MixArgs<T> a{.segments = rule.batch.segments,
                     .pending_rows = rule.batch.pending_rows,
                     .u = static_cast<const T*>(conv.u),
                     .conv_weight = conv.weight,
                     .window = static_cast<T*>(conv.window),
                     .a = rule.a,
                     .b = rule.b,
                     .a_log = rule.a_log,
                     .dt_bias = rule.dt_bias,
                     .s = rule.state.s,
                     .round_qkv = static_cast<T*>(rule.state.round_qkv),
                     .round_gates = rule.state.round_gates,
                     .norm_weight = norm.weight,
                     .z = static_cast<const T*>(norm.z),
                     .y = static_cast<T*>(norm.y),
                     .channels = conv.channels,
                     .num_k_heads = shape.num_k_heads,
                     .num_v_heads = shape.num_v_heads,
                     .max_round_rows = conv.max_round_rows,
                     .query_factor = query_factor(kMixDim),
                     .eps = norm.eps};
  const int group = shape.num_v_heads / shape.num_k_heads;
  const dim3 grid(kMixBlocks, static_cast<unsigned>(shape.num_k_heads),
                  static_cast<unsigned>(rule.batch.num_segments));
  void (*const kernel)(MixArgs<T>) = norm.activation == ops::GateActivation::kSilu
                                         ? gated_delta_mix_kernel<T, ops::GateActivation::kSilu>
                                         : gated_delta_mix_kernel<T, ops::GateActivation::kSigmoid>;
  launch_overlapping(backend, kernel, grid, static_cast<unsigned>(group * kWarp),
                     sizeof(MixShared<T>), a);
}

}  // namespace

void gated_delta_mix(CudaBackend& backend, const ops::GatedDeltaMixArgs& args) {
  if (!mixes_at_once(args)) {
    causal_conv(backend, args.conv);
    gated_delta_rule(backend, args.rule);
    gated_rms_norm(backend, args.norm);
  } else if (args.rule.batch.num_segments > 0) {
    with_float_type(args.rule.dtype, [&](auto type) { run<decltype(type)>(backend, args); });
  }
}

}  // namespace tandem::cuda
