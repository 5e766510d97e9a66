// What both kernels of a Gated DeltaNet layer's rounds share (gated_delta_mix_kernels.h): a
// block's channels and how they are convolved, what it keeps of them in shared memory, and the
// gated norm.
//
// Value heads of one key head share its channels, and so does every block with columns of theirs.
// Each convolves them for itself. They overwrite what all of them read - the window, the replayed
// rows - only after a barrier of the cluster, which is passed long before anybody waits for it.
#pragma once

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/gated_delta.cuh"
#include "kernels/cuda/gated_delta_columns.cuh"
#include "kernels/cuda/gated_delta_mix_plan.h"

namespace tandem::cuda {

inline constexpr int kMixLanesOfColumn = 8;
using MixState = StateColumns<kMixLanesOfColumn>;
static_assert(MixState::kWarpColumns == kMixColumns && kMixLanesOfColumn * kLaneKeys == kMixDim);
static_assert(kWarp * kLaneColumns == kMixDim);  // a warp norms a key or query in one go

inline constexpr int kMixRowsAtOnce = 4;  // whose keys and queries are ready at a time
inline constexpr int kOldColumns = kMixTaps - 1;
inline constexpr int kKeyChannels = 2 * kMixDim;  // query and key

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

// A block's channels: query and key of the key head, then its columns of each of its value heads.
template <class T, int kChannels>
struct MixShared {
  alignas(16) T rows[2 * kMixMaxRows][kChannels];  // convolved; replayed ones, then new ones
  alignas(16) T inputs[kOldColumns + kMixMaxRows][kChannels];  // of the convolution
  float4 conv_weight[kChannels];
  float k[kMixRowsAtOnce][kMixLanesOfColumn * kPaddedKeys];
  float q[kMixRowsAtOnce][kMixLanesOfColumn * kPaddedKeys];
  alignas(16) float norm_weight[kMixDim];
};

template <class T>
struct alignas(4 * sizeof(T)) Four {
  T at[4];
};

// What a block works on.
struct MixPart {
  int k_head;
  int first_head;  // of its value heads
  int num_heads;
  int first_column;  // of kColumns, in each of them
  int block;         // of those that share the key head's channels, a cluster
  int num_blocks;
};

template <class T, int kColumns, int kMaxHeads>
class MixBlock {
 public:
  static constexpr int kChannels = kKeyChannels + kMaxHeads * kColumns;
  using Shared = MixShared<T, kChannels>;

  __device__ MixBlock(const MixArgs<T>& a, Shared& shared, const MixPart& part)
      : a_(a),
        shared_(shared),
        part_(part),
        warps_(static_cast<int>(blockDim.x) / kWarp),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp) {}

  // What no kernel writes.
  __device__ void copy_weights() {
#pragma unroll 1
    for (int c = static_cast<int>(threadIdx.x); c < kKeyChannels + part_.num_heads * kColumns;
         c += warps_ * kWarp) {
      copy_async16(&shared_.conv_weight[c], a_.conv_weight + place(c) * kMixTaps, true);
    }
    if (threadIdx.x < kMixDim / 4) {
      copy_async16(shared_.norm_weight + threadIdx.x * 4, a_.norm_weight + threadIdx.x * 4, true);
    }
  }

  // This thread's.
  static __device__ __forceinline__ void wait_for_copies() {
    commit_async();  // those that belong to no group are not waited for
    wait_async<0>();
  }

 protected:
  static constexpr int kPiece = 16 / sizeof(T);  // elements that are copied at once

  // Where the block's channel c lies in a row of all channels.
  __device__ int place(int c) const {
    const int keys = a_.num_k_heads * kMixDim;
    if (c < kKeyChannels) return (c < kMixDim ? 0 : keys - kMixDim) + part_.k_head * kMixDim + c;
    const int value = c - kKeyChannels;
    return 2 * keys + (part_.first_head + value / kColumns) * kMixDim + part_.first_column +
           value % kColumns;
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
    static_assert(kMaxHeads * kColumns <= kWarp * kPiece);
    const int c = kKeyChannels + lane_ * kPiece;
    if (lane_ * kPiece < part_.num_heads * kColumns) function(c, place(c));
  }

  __device__ T* window() const {
    return a_.window +
           std::int64_t{segment_.slot} * (kOldColumns + a_.max_round_rows) * a_.channels;
  }
  __device__ T* record() const {
    return a_.round_qkv + std::int64_t{segment_.slot} * a_.max_round_rows * a_.channels;
  }
  __device__ float* recorded_gates(int row, int head) const {
    return a_.round_gates +
           (std::int64_t{segment_.slot} * a_.max_round_rows + row) * 2 * a_.num_v_heads + head;
  }
  // Of a new row.
  __device__ std::int64_t values_of(int row, int head) const {
    return (std::int64_t{segment_.first_row + row} * a_.num_v_heads + head) * kMixDim;
  }

  // Replayed rows, and the convolution's inputs.
  __device__ void stage_rows() {
    const int rows = pending_ + kOldColumns + segment_.num_rows;
    // In terms of j below.
    const T* window = this->window();
    const T* u = a_.u + std::int64_t{segment_.first_row - pending_ - kOldColumns} * a_.channels;
#pragma unroll 1
    for (int j = warp_; j < rows; j += warps_) {
      const bool replayed = j < pending_;
      const T* from = (replayed                     ? record()
                       : j < pending_ + kOldColumns ? window
                                                    : u) +
                      j * a_.channels;
      T* to = replayed ? shared_.rows[j] : shared_.inputs[j - pending_];
      for_pieces(true, [&](int c, int place) { copy_async16(to + c, from + place, true); });
    }
  }

  // A lane's row of the round, into gates[lane] as well.
  __device__ GdnGate load_gate(int head, float a_log, float dt_bias, RowGate* gates) const {
    GdnGate gate;
    if (lane_ >= pending_ + segment_.num_rows) return gate;
    if (lane_ < pending_) {
      const float* at = recorded_gates(lane_, head);
      gate = {at[0], at[a_.num_v_heads]};
    } else {
      const int i = (segment_.first_row + lane_ - pending_) * a_.num_v_heads + head;
      gate = gate_of(a_.a[i], a_.b[i], a_log, dt_bias);
    }
    gates[lane_] = {expf(gate.g), gate.beta};
    return gate;
  }
  __device__ void record_gate(int head, const GdnGate& gate) const {
    const int row = lane_ - pending_;
    if (row < 0 || row >= segment_.num_rows) return;
    float* to = recorded_gates(row, head);
    to[0] = gate.g;
    to[a_.num_v_heads] = gate.beta;
  }

  // Channels c .. c + 3 of a row: convolved and rounded if it is new.
  __device__ float4 channels_of(int row, int c) const {
    if (row < pending_) return widen4(shared_.rows[row] + c);
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

  // Key or query of a row, at unit length, into place i. By one warp, four channels a lane.
  __device__ __forceinline__ void keep_key(const float4& x, int i, bool is_query) {
    const float unit = unit_factor(add_squares(x, 0));
    float* to = is_query ? shared_.q[i] : shared_.k[i];
    *reinterpret_cast<float4*>(to + padded_place(lane_ * 4)) =
        scaled(x, is_query ? unit * a_.query_factor : unit);
  }

  // The window and the record of the round. Queries and keys of a row are written by one block,
  // values by the block they belong to.
  __device__ void write_back() const {
    const int inputs = kOldColumns + segment_.num_rows;
    // In terms of j below.
    T* record = this->record() - std::int64_t{inputs} * a_.channels;
    T* window = this->window();
#pragma unroll 1
    for (int j = warp_; j < inputs + segment_.num_rows; j += warps_) {
      const bool is_input = j < inputs;
      const T* from = is_input ? shared_.inputs[j] : shared_.rows[pending_ + j - inputs];
      T* to = (is_input ? window : record) + j * a_.channels;
      for_pieces(j % part_.num_blocks == part_.block, [&](int c, int place) {
        *reinterpret_cast<int4*>(to + place) = *reinterpret_cast<const int4*>(from + c);
      });
    }
  }

  // A lane's share of the gates of a head's outputs: every 32nd.
  struct OutputGates {
    float of[kMixDim / kWarp];
  };
  template <ops::GateActivation kActivation>
  __device__ __forceinline__ OutputGates output_gates(const T* z) const {
    OutputGates gates;
#pragma unroll
    for (int n = 0; n < kMixDim / kWarp; ++n) {
      const float gate = load_float(z + lane_ + n * kWarp);
      gates.of[n] = kActivation == ops::GateActivation::kSilu ? silu(gate) : sigmoid(gate);
    }
    return gates;
  }
  // A head's outputs, normed and gated. By one warp.
  __device__ __forceinline__ void norm_head(const float* o, const OutputGates& gates, T* y) const {
    constexpr int kHeld = kMixDim / kWarp;
    float values[kHeld];
    float squares = 0;
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      values[n] = o[lane_ + n * kWarp];
      squares = fmaf(values[n], values[n], squares);
    }
    const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(kMixDim) + a_.eps);
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      const int i = lane_ + n * kWarp;
      store_float(shared_.norm_weight[i] * (values[n] * scale) * gates.of[n], y + i);
    }
  }

  const MixArgs<T>& a_;
  Shared& shared_;
  const MixPart part_;
  const int warps_, warp_, lane_;
  ops::Segment segment_;
  int pending_ = 0;
};

template <class T>
MixArgs<T> mix_args(const ops::GatedDeltaMixArgs& args) {
  const auto& [conv, rule, norm] = args;
  return {.segments = rule.batch.segments,
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
          .num_k_heads = rule.shape.num_k_heads,
          .num_v_heads = rule.shape.num_v_heads,
          .max_round_rows = conv.max_round_rows,
          .query_factor = query_factor(kMixDim),
          .eps = norm.eps};
}

}  // namespace tandem::cuda
