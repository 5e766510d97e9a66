// Rounds of a Gated DeltaNet layer of few sequences (gated_delta_mix.cuh): blocks small enough that
// every processor has one. A cluster works on a key head of a segment, each block on a strip of 16
// columns of all its value heads, a warp to a head. Block r norms the segment's row r, whose
// outputs the others send to its shared memory.
#include "kernels/cuda/gated_delta_mix.cuh"
#include "kernels/cuda/gated_delta_mix_kernels.h"

namespace tandem::cuda {
namespace {

template <class T>
using StripBlock = MixBlock<T, kMixColumns, kMixMaxGroup>;

template <class T>
struct StripShared {
  typename StripBlock<T>::Shared mix;
  RowGate gates[kMixMaxGroup][2 * kMixMaxRows];
  // Of the row that this block norms:
  alignas(16) float o[kMixMaxGroup][kMixDim];
  alignas(16) T z[kMixMaxGroup][kMixDim];
  Barrier o_complete;
};

static_assert(sizeof(StripShared<bf16>) <= kMixStripsBytes);

template <class T, ops::GateActivation kActivation>
class StripMixer : StripBlock<T> {
  using Base = StripBlock<T>;
  using Base::a_, Base::shared_, Base::part_, Base::warps_, Base::warp_, Base::lane_;
  using Base::kPiece, Base::segment_, Base::pending_;

 public:
  __device__ StripMixer(const MixArgs<T>& a, StripShared<T>& shared, const MixPart& part)
      : Base(a, shared.mix, part),
        strip_(shared),
        v_head_(part.first_head + warp_),
        keys_(MixState::part(lane_)),
        column_(part.first_column + MixState::column(lane_)),
        value_channel_(kKeyChannels + warp_ * kMixColumns) {}

  // Everything that no kernel writes.
  __device__ void begin() {
    this->copy_weights();
    a_log_ = a_.a_log[v_head_];
    dt_bias_ = a_.dt_bias[v_head_];
    if (threadIdx.x == 0) {
      strip_.o_complete.init(1);
      publish_barriers();
    }
    // Else each would be looked up, and waited for, where it is used first.
    asm volatile("" ::"l"(a_.segments), "l"(a_.a), "l"(a_.z), "r"(a_.channels), "f"(a_.eps));
  }

  __device__ void run() {
    segment_ = a_.segments[blockIdx.z];
    if (segment_.num_rows == 0) return this->wait_for_copies();  // all of the cluster
    const std::int64_t head = std::int64_t{segment_.slot} * a_.num_v_heads + v_head_;
    float* state = a_.s + (head * kMixDim + keys_ * kLaneKeys) * kMixDim + column_;
    s_.load(state, kMixDim, true);
    pending_ = a_.pending_rows[segment_.slot];
    this->stage_rows();
    if (norms_row() && lane_ * kPiece < kMixDim) {
      copy_async16(strip_.z[warp_] + lane_ * kPiece,
                   a_.z + this->values_of(part_.block, v_head_) + lane_ * kPiece, true);
    }
    const GdnGate gate = this->load_gate(v_head_, a_log_, dt_bias_, strip_.gates[warp_]);
    this->wait_for_copies();
    cluster_arrive();  // this block has begun, and has read what the others are going to overwrite
    __syncthreads();
    if (threadIdx.x == 0 && norms_row()) {
      strip_.o_complete.arrive_and_expect(warps_ * kMixDim * static_cast<int>(sizeof(float)));
    }

    const int rows = pending_ + segment_.num_rows;
#pragma unroll 1
    for (int first = 0; first < rows; first += kMixRowsAtOnce) {
      const int n = min(kMixRowsAtOnce, rows - first);
      if (first > 0) __syncthreads();  // keys and queries before have been used
      prepare(first, n);
      __syncthreads();
      if (first == 0) cluster_wait();
#pragma unroll 1
      for (int i = 0; i < n; ++i) step(first + i, i, state);
    }
    this->write_back();
    if (part_.block == 0) this->record_gate(v_head_, gate);
    if (norms_row()) norm_row();
  }

 private:
  __device__ bool norms_row() const { return part_.block < segment_.num_rows; }

  // Rows first .. first + n - 1 of the round: convolves the new ones; norms all keys, and the
  // queries of new rows. A warp takes its head's values of all rows, then a vector at a time.
  __device__ void prepare(int first, int n) {
    const int replayed = min(max(pending_ - first, 0), n);
    const int vectors = n + n - replayed;
    // One loop: what it calls is long, and fetched from memory once a layer.
#pragma unroll 1
    for (int vector = warp_ - warps_; vector < vectors; vector += warps_) {
      const bool is_value = vector < 0, is_query = vector >= n;
      const int i = is_value ? lane_ / 4 : is_query ? replayed + vector - n : vector;
      const int c =
          is_value ? value_channel_ + lane_ % 4 * 4 : (is_query ? 0 : kMixDim) + lane_ * 4;
      float4 x = make_float4(0, 0, 0, 0);
      if (!is_value || (i >= replayed && i < n)) x = this->channels_of(first + i, c);
      if (!is_value) this->keep_key(x, i, is_query);
    }
  }

  // Row `row` of the round, whose key and query are in place i.
  __device__ void step(int row, int i, float* state) {
    const bool replayed = row < pending_;
    const float4 v = widen4(shared_.rows[row] + value_channel_ + MixState::column(lane_));
    const float4 out =
        s_.step(strip_.gates[warp_][row], shared_.k[i], shared_.q[i], v, keys_, replayed);
    if (row == pending_ - 1) s_.store(state, kMixDim);
    if (replayed || keys_ != 0) return;
    const int norming = row - pending_;
    send(out, address_in_block(strip_.o[warp_] + column_, norming),
         address_in_block(&strip_.o_complete, norming));
  }

  // A warp its head of this block's row.
  __device__ void norm_row() {
    const auto gates = this->template output_gates<kActivation>(strip_.z[warp_]);
    wait_for_sent(strip_.o_complete, 0);
    this->norm_head(strip_.o[warp_], gates, a_.y + this->values_of(part_.block, v_head_));
  }

  StripShared<T>& strip_;
  const int v_head_;
  const int keys_;           // which part of them
  const int column_;         // the first of the lane's four
  const int value_channel_;  // the first of the warp's 16
  float a_log_ = 0, dt_bias_ = 0;
  MixState s_;
};

template <class T, ops::GateActivation kActivation>
__global__ void __launch_bounds__(kMixMaxGroup* kWarp) __cluster_dims__(kMixBlocks, 1, 1)
    mix_strips_kernel(const __grid_constant__ MixArgs<T> a) {
  allow_next_kernel();
  extern __shared__ __align__(16) unsigned char strip_shared[];
  const int k_head = static_cast<int>(blockIdx.y), block = static_cast<int>(blockIdx.x);
  const int group = static_cast<int>(blockDim.x) / kWarp;
  StripMixer<T, kActivation> mixer(a, *reinterpret_cast<StripShared<T>*>(strip_shared),
                                   {.k_head = k_head,
                                    .first_head = k_head * group,
                                    .num_heads = group,
                                    .first_column = block * kMixColumns,
                                    .block = block,
                                    .num_blocks = kMixBlocks});
  mixer.begin();
  wait_for_previous_kernel();
  mixer.run();
}

template <class T>
void run(const CudaBackend& backend, const ops::GatedDeltaMixArgs& args) {
  const ops::GdnShape& shape = args.rule.shape;
  const dim3 grid(kMixBlocks, static_cast<unsigned>(shape.num_k_heads),
                  static_cast<unsigned>(args.rule.batch.num_segments));
  void (*const kernel)(MixArgs<T>) = args.norm.activation == ops::GateActivation::kSilu
                                         ? mix_strips_kernel<T, ops::GateActivation::kSilu>
                                         : mix_strips_kernel<T, ops::GateActivation::kSigmoid>;
  launch_overlapping(backend, kernel, grid,
                     static_cast<unsigned>(shape.num_v_heads / shape.num_k_heads * kWarp),
                     sizeof(StripShared<T>), mix_args<T>(args));
}

}  // namespace

void gated_delta_mix_strips(const CudaBackend& backend, const ops::GatedDeltaMixArgs& args) {
  with_float_type(args.rule.dtype, [&](auto type) { run<decltype(type)>(backend, args); });
}

}  // namespace tandem::cuda
