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
static_assert(State::kWarpColumns == kMixColumns && kLanesOfColumn * kLaneKeys == kMixMaxDim);
static_assert(kWarp * kLaneColumns == kMixMaxDim);  // a warp norms a key or query in one go

constexpr int kRowsAtOnce = 4;  // whose keys and queries are ready at a time
constexpr int kOldColumns = kMixTaps - 1;
constexpr int kMaxChannels = 2 * kMixMaxDim + kMixMaxWarps * kMixColumns;  // of a block

template <class T>
struct MixArgs {
  const ops::Segment* segments;      // [segments]
  const std::int32_t* pending_rows;  // [slots]
  const T* u;                        // [rows, channels], row stride u_stride
  std::int64_t u_stride;
  const float* conv_weight;  // [channels, 4]
  T* window;                 // [slots, 3 + max_round_rows, channels]
  const float* a;            // [rows, num_v_heads]
  const float* b;            // [rows, num_v_heads]
  const float* a_log;        // [num_v_heads]
  const float* dt_bias;      // [num_v_heads]
  float* s;                  // [slots, num_v_heads, k_dim, v_dim]
  T* round_qkv;              // [slots, max_round_rows, channels]
  float* round_gates;        // [slots, max_round_rows, 2, num_v_heads]
  const float* norm_weight;  // [v_dim]
  const T* z;                // [rows, num_v_heads, v_dim]
  T* y;                      // [rows, num_v_heads, v_dim]; may be z
  int channels, num_k_heads, num_v_heads, k_dim, v_dim, max_round_rows;
  float query_factor, eps;
  ops::GateActivation activation;
};

// A block's channels are those of its key head's query and key, then its values'.
template <class T>
struct MixShared {
  alignas(16) T rows[2 * kMixMaxRows][kMaxChannels];  // convolved; replayed ones, then new ones
  alignas(16) T inputs[kOldColumns + kMixMaxRows][kMaxChannels];  // of the convolution
  float4 conv_weight[kMaxChannels];
  float k[kRowsAtOnce][kLanesOfColumn * kPaddedKeys];
  float q[kRowsAtOnce][kLanesOfColumn * kPaddedKeys];
  float o[kMixMaxValues];          // of the row that this block norms
  alignas(16) T z[kMixMaxValues];  // of the same
  float act[kMixMaxValues];
  alignas(16) float norm_weight[kMixMaxDim];
  RowGate gates[kMixMaxWarps][2 * kMixMaxRows];  // of a warp's head
  Barrier sums_complete;                         // o
};

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T at[4];
};

template <class T>
class Mixer {
 public:
  __device__ Mixer(const MixArgs<T>& a, MixShared<T>& shared)
      : a_(a),
        shared_(shared),
        block_(static_cast<int>(blockIdx.x)),
        k_head_(static_cast<int>(blockIdx.y)),
        warps_(static_cast<int>(blockDim.x) / kWarp),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        group_(a.num_v_heads / a.num_k_heads),
        values_(group_ * a.v_dim),
        first_value_(block_ * warps_ * kMixColumns),
        value_(first_value_ + warp_ * kMixColumns),
        exists_(value_ < values_),
        v_head_(k_head_ * group_ + value_ / a.v_dim),
        column_(value_ % a.v_dim),
        part_(State::part(lane_)),
        stored_(exists_ && part_ * kLaneKeys < a.k_dim),
        channels_(2 * a.k_dim + min(max(values_ - first_value_, 0), warps_ * kMixColumns)),
        q_place_(k_head_ * a.k_dim),
        k_place_(a.num_k_heads * a.k_dim + q_place_ - a.k_dim),
        v_place_(2 * a.num_k_heads * a.k_dim + k_head_ * values_ + first_value_ - 2 * a.k_dim) {}

  // Everything that no kernel writes.
  __device__ void begin() {
#pragma unroll 1
    for (int c = static_cast<int>(threadIdx.x); c < channels_; c += warps_ * kWarp) {
      copy_async16(&shared_.conv_weight[c], a_.conv_weight + place(c) * kMixTaps, true);
    }
    if (static_cast<int>(threadIdx.x) * 4 < a_.v_dim) {
      copy_async16(shared_.norm_weight + threadIdx.x * 4, a_.norm_weight + threadIdx.x * 4, true);
    }
    if (exists_) {
      a_log_ = a_.a_log[v_head_];
      dt_bias_ = a_.dt_bias[v_head_];
    }
    if (threadIdx.x == 0) {
      shared_.sums_complete.init(1);
      publish_barriers();
    }
    // Else each would be looked up, and waited for, where it is used first.
    asm volatile("" ::"l"(a_.segments), "l"(a_.a), "l"(a_.z), "r"(a_.channels), "f"(a_.eps));
  }

  __device__ void run() {
    segment_ = a_.segments[blockIdx.z];
    if (segment_.num_rows == 0) return wait_async<0>();  // all of the cluster
    float* state =
        a_.s +
        ((std::int64_t{segment_.slot} * a_.num_v_heads + v_head_) * a_.k_dim + part_ * kLaneKeys) *
            a_.v_dim +
        column_ + State::column(lane_);
    s_.load(state, a_.v_dim, stored_);
    pending_ = a_.pending_rows[segment_.slot];
    stage_rows();
    const GdnGate gate = load_gate();
    if (threadIdx.x == 0 && block_ < segment_.num_rows) {
      shared_.sums_complete.arrive_and_expect(values_ * static_cast<int>(sizeof(float)));
    }
    wait_async<0>();
    cluster_arrive();  // this block has begun, and has read what the others are going to overwrite
    __syncthreads();

    const int rows = pending_ + segment_.num_rows;
#pragma unroll 1
    for (int first = 0; first < rows; first += kRowsAtOnce) {
      const int n = min(kRowsAtOnce, rows - first);
      if (first > 0) __syncthreads();  // keys and queries before have been used
      prepare(first, n);
      __syncthreads();
      if (first == 0) cluster_wait();
      if (!exists_) continue;
#pragma unroll 1
      for (int i = 0; i < n; ++i) step(first + i, i, state);
    }
    write_back(gate);
    if (block_ < segment_.num_rows) norm_row();
  }

 private:
  // Of the block's channel c in a row of all channels.
  __device__ int place(int c) const {
    return c + (c < a_.k_dim ? q_place_ : c < 2 * a_.k_dim ? k_place_ : v_place_);
  }
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
  // Of the group's values in a row of the batch.
  __device__ std::int64_t values_of_row(int row) const {
    return (std::int64_t{segment_.first_row + row} * a_.num_v_heads + k_head_ * group_) * a_.v_dim;
  }

  // Replayed rows, the convolution's inputs, and the gates of the row that this block norms.
  __device__ void stage_rows() {
    const int inputs = kOldColumns + segment_.num_rows;
    const T* window = this->window() + std::int64_t{pending_} * a_.channels;
    const T* u = a_.u + segment_.first_row * a_.u_stride;
#pragma unroll 1
    for (int j = warp_; j < pending_ + inputs; j += warps_) {
      const int i = j - pending_;
      const T* from = i < 0             ? record() + std::int64_t{j} * a_.channels
                      : i < kOldColumns ? window + std::int64_t{i} * a_.channels
                                        : u + (i - kOldColumns) * a_.u_stride;
      T* to = i < 0 ? shared_.rows[j] : shared_.inputs[i];
#pragma unroll 1
      for (int c = lane_ * kPiece; c < channels_; c += kWarp * kPiece) {
        copy_async16(to + c, from + place(c), true);
      }
    }
    if (block_ >= segment_.num_rows) return;
    const T* z = a_.z + values_of_row(block_);
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) * kPiece; i < values_;
         i += warps_ * kWarp * kPiece) {
      copy_async16(shared_.z + i, z + i, true);
    }
  }

  // A lane's row of the round.
  __device__ GdnGate load_gate() {
    GdnGate gate;
    if (!exists_ || lane_ >= pending_ + segment_.num_rows) return gate;
    if (lane_ < pending_) {
      const float* at = recorded_gates(lane_);
      gate = {at[0], at[a_.num_v_heads]};
    } else {
      const std::int64_t row = segment_.first_row + lane_ - pending_;
      const std::int64_t i = row * a_.num_v_heads + v_head_;
      gate = gate_of(a_.a[i], a_.b[i], a_log_, dt_bias_);
    }
    shared_.gates[warp_][lane_] = {expf(gate.g), gate.beta};
    return gate;
  }

  // Rows first .. first + n - 1 of the round: convolves the new ones; norms all keys, and the
  // queries of new rows. A warp takes its own columns of all rows' values, then a vector at a time.
  __device__ void prepare(int first, int n) {
    const int replayed = min(max(pending_ - first, 0), n);
    const int vectors = n + n - replayed;
#pragma unroll 1
    for (int vector = warp_ - warps_; vector < vectors; vector += warps_) {
      const bool is_value = vector < 0, is_query = vector >= n;
      const int i = is_value ? lane_ / 4 : is_query ? replayed + vector - n : vector;
      const int c = is_value ? 2 * a_.k_dim + warp_ * kMixColumns + lane_ % 4 * 4
                             : (is_query ? 0 : a_.k_dim) + lane_ * 4;
      const bool wanted = is_value ? exists_ && i >= replayed && i < n : lane_ * 4 < a_.k_dim;
      float4 x = make_float4(0, 0, 0, 0);
      if (wanted) {
        x = i < replayed ? widen4(shared_.rows[first + i] + c) : convolve(first + i, c);
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
    const int column = warp_ * kMixColumns + State::column(lane_);
    const float4 v = widen4(shared_.rows[row] + 2 * a_.k_dim + column);
    const float4 out =
        s_.step(shared_.gates[warp_][row], shared_.k[i], shared_.q[i], v, part_, replayed);
    if (row == pending_ - 1 && stored_) s_.store(state, a_.v_dim);
    if (replayed || part_ != 0) return;
    const int norms_it = row - pending_;
    send(out, address_in_block(shared_.o + first_value_ + column, norms_it),
         address_in_block(&shared_.sums_complete, norms_it));
  }

  // The window and the record of the round. Queries and keys of a row are written by one block,
  // values by the block they belong to, a head's gates by the warp with its first column.
  __device__ void write_back(const GdnGate& gate) {
    const int inputs = kOldColumns + segment_.num_rows;
#pragma unroll 1
    for (int j = warp_; j < inputs + segment_.num_rows; j += warps_) {
      const int row = j - inputs;
      const T* from = row < 0 ? shared_.inputs[j] : shared_.rows[pending_ + row];
      T* to = row < 0 ? window() + std::int64_t{j} * a_.channels
                      : record() + std::int64_t{row} * a_.channels;
      const int begin = j % kMixBlocks == block_ ? 0 : 2 * a_.k_dim;
#pragma unroll 1
      for (int c = begin + lane_ * kPiece; c < channels_; c += kWarp * kPiece) {
        *reinterpret_cast<int4*>(to + place(c)) = *reinterpret_cast<const int4*>(from + c);
      }
    }
    const int row = lane_ - pending_;
    if (exists_ && column_ == 0 && row >= 0 && row < segment_.num_rows) {
      float* to = recorded_gates(row);
      to[0] = gate.g;
      to[a_.num_v_heads] = gate.beta;
    }
  }

  // This block's row, a head to a warp; a lane's elements are its own from first to last.
  __device__ void norm_row() {
    const bool is_silu = a_.activation == ops::GateActivation::kSilu;
    const auto for_elements = [&](int head, const auto& function) {
#pragma unroll 1
      for (int i = lane_; i < a_.v_dim; i += kWarp) function(head * a_.v_dim + i, i);
    };
#pragma unroll 1
    for (int head = warp_; head < group_; head += warps_) {
      for_elements(head, [&](int at, int) {  // silu or sigmoid
        const float gate = load_float(shared_.z + at);
        shared_.act[at] = (is_silu ? gate : 1.0f) / (1.0f + expf(-gate));
      });
    }
    wait_for_sent(shared_.sums_complete, 0);
    T* y = a_.y + values_of_row(block_);
#pragma unroll 1
    for (int head = warp_; head < group_; head += warps_) {
      float squares = 0;
      for_elements(head,
                   [&](int at, int) { squares = fmaf(shared_.o[at], shared_.o[at], squares); });
      const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(a_.v_dim) + a_.eps);
      for_elements(head, [&](int at, int i) {
        store_float(shared_.norm_weight[i] * (shared_.o[at] * scale) * shared_.act[at], y + at);
      });
    }
  }

  static constexpr int kPiece = 16 / sizeof(T);  // elements that are copied at once

  const MixArgs<T>& a_;
  MixShared<T>& shared_;
  const int block_;  // of the cluster
  const int k_head_;
  const int warps_, warp_, lane_;
  const int group_;        // value heads of the key head
  const int values_;       // of the group
  const int first_value_;  // of the block's, counted in the group
  const int value_;        // of the warp's
  const bool exists_;      // whether the warp has columns
  const int v_head_;
  const int column_;  // the first of the warp's, in its head
  const int part_;    // which keys
  const bool stored_;
  const int channels_;  // of the block
  const int q_place_, k_place_, v_place_;
  float a_log_ = 0, dt_bias_ = 0;
  ops::Segment segment_;
  int pending_ = 0;
  State s_;
};

template <class T>
__global__ void __launch_bounds__(kMixMaxWarps* kWarp) __cluster_dims__(kMixBlocks, 1, 1)
    gated_delta_mix_kernel(const __grid_constant__ MixArgs<T> a) {
  allow_next_kernel();
  extern __shared__ __align__(16) unsigned char mix_shared[];
  Mixer<T> mixer(a, *reinterpret_cast<MixShared<T>*>(mix_shared));
  mixer.begin();
  wait_for_previous_kernel();
  mixer.run();
}

template <class T>
void run(const CudaBackend& backend, const ops::GatedDeltaMixArgs& args, const MixPlan& plan) {
  const auto& [conv, rule, norm] = args;
  const ops::GdnShape& shape = rule.shape;
  const MixArgs<T> a{.segments = rule.batch.segments,
                     .pending_rows = rule.batch.pending_rows,
                     .u = static_cast<const T*>(conv.u),
                     .u_stride = conv.u_stride,
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
                     .k_dim = shape.k_dim,
                     .v_dim = shape.v_dim,
                     .max_round_rows = conv.max_round_rows,
                     .query_factor = query_factor(shape.k_dim),
                     .eps = norm.eps,
                     .activation = norm.activation};
  const dim3 grid(kMixBlocks, static_cast<unsigned>(shape.num_k_heads),
                  static_cast<unsigned>(rule.batch.num_segments));
  launch_overlapping(backend, gated_delta_mix_kernel<T>, grid,
                     static_cast<unsigned>(plan.warps * kWarp), sizeof(MixShared<T>), a);
}

}  // namespace

void gated_delta_mix(CudaBackend& backend, const ops::GatedDeltaMixArgs& args) {
  const MixPlan plan = plan_mix(args);
  if (!plan.fits) {
    causal_conv(backend, args.conv);
    gated_delta_rule(backend, args.rule);
    gated_rms_norm(backend, args.norm);
  } else if (args.rule.batch.num_segments > 0) {
    with_float_type(args.rule.dtype, [&](auto type) { run<decltype(type)>(backend, args, plan); });
  }
}

}  // namespace tandem::cuda
