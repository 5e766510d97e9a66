// Rounds of a Gated DeltaNet layer of many sequences (gated_delta_mix.cuh). A block works on one
// value head, whose state the copy engine brings in one piece, 64 KB that need neither registers
// nor first-level cache while they are under way, and two blocks share a processor, one of which
// loads while the other computes. The blocks of a key head are a cluster.
//
// What bounds it: on an H200, 16 sequences are three turns of such blocks, of 8 us each that are
// latencies of their own, whether or not states are read and written.
#include "kernels/cuda/gated_delta_mix.cuh"
#include "kernels/cuda/gated_delta_mix_kernels.h"

namespace tandem::cuda {
namespace {

constexpr int kHeadWarps = kMixDim / kMixColumns;  // 16 columns each

template <class T>
using HeadBlock = MixBlock<T, kMixDim, 1>;

template <class T>
struct HeadShared {
  // The keys of one lane each, all columns. Lanes that read at once have different keys: those of
  // two neighbouring parts lie in different banks.
  struct alignas(16) StatePart {
    float of[kLaneKeys][kMixDim];
    float gap[16];
  };
  StatePart state[kMixLanesOfColumn];
  typename HeadBlock<T>::Shared mix;
  RowGate gates[2 * kMixMaxRows];
  alignas(16) float o[kMixMaxRows][kMixDim];
  alignas(16) T z[kMixMaxRows][kMixDim];
  Barrier loaded;
};

template <class T, ops::GateActivation kActivation>
class HeadMixer : HeadBlock<T> {
  using Base = HeadBlock<T>;
  using Base::a_, Base::shared_, Base::part_, Base::warps_, Base::warp_, Base::lane_;
  using Base::kPiece, Base::segment_, Base::pending_;

 public:
  __device__ HeadMixer(const MixArgs<T>& a, HeadShared<T>& shared, const MixPart& part)
      : Base(a, shared.mix, part),
        head_(shared),
        keys_(MixState::part(lane_)),
        column_(warp_ * kMixColumns + MixState::column(lane_)) {}

  // Everything that no kernel writes.
  __device__ void begin() {
    if (threadIdx.x == 0) {
      head_.loaded.init(1);
      publish_barriers();
      publish_stores();
    }
    this->copy_weights();
    a_log_ = a_.a_log[part_.first_head];
    dt_bias_ = a_.dt_bias[part_.first_head];
  }

  __device__ void run() {
    segment_ = a_.segments[blockIdx.z];
    if (segment_.num_rows == 0) return this->wait_for_copies();  // all of the cluster
    float* state = a_.s + (std::int64_t{segment_.slot} * a_.num_v_heads + part_.first_head) *
                              kMixDim * kMixDim;
    if (threadIdx.x == 0) load_state(state);
    pending_ = a_.pending_rows[segment_.slot];
    this->stage_rows();
    if (warp_ < segment_.num_rows && lane_ * kPiece < kMixDim) {
      copy_async16(head_.z[warp_] + lane_ * kPiece,
                   a_.z + this->values_of(warp_, part_.first_head) + lane_ * kPiece, true);
    }
    GdnGate gate;
    if (warp_ == 0) gate = this->load_gate(part_.first_head, a_log_, dt_bias_, head_.gates);
    this->wait_for_copies();
    cluster_arrive();  // this block has read what the others are going to overwrite
    __syncthreads();

    const int rows = pending_ + segment_.num_rows;
    float* columns = state + keys_ * kLaneKeys * kMixDim + column_;
#pragma unroll 1
    for (int row = 0; row < rows; ++row) {
      const int i = row % kMixRowsAtOnce;
      if (i == 0) {
        if (row > 0) __syncthreads();  // keys and queries before have been used
        prepare(row, min(kMixRowsAtOnce, rows - row));
        __syncthreads();
      }
      if (row == 0) {
        head_.loaded.wait(0);
        s_.load_shared(&head_.state[keys_].of[0][column_], kMixDim);
      }
      step(row, i, columns);
    }
    cluster_wait();
    this->write_back();
    if (warp_ == 0) this->record_gate(part_.first_head, gate);
    __syncthreads();  // outputs are there
    if (warp_ < segment_.num_rows) {
      this->norm_head(head_.o[warp_], this->template output_gates<kActivation>(head_.z[warp_]),
                      a_.y + this->values_of(warp_, part_.first_head));
    }
  }

 private:
  // One thread.
  __device__ void load_state(const float* from) {
    constexpr int kBytes = static_cast<int>(sizeof(head_.state[0].of));
    publish_to_copies();  // what kernels before have written
    head_.loaded.arrive_and_expect(kMixLanesOfColumn * kBytes);
#pragma unroll 1
    for (int part = 0; part < kMixLanesOfColumn; ++part, from += kLaneKeys * kMixDim) {
      copy_bytes(from, kBytes, head_.state[part].of, head_.loaded, read_once_policy());
    }
  }

  // Rows first .. first + n - 1 of the round: convolves the new ones; norms all keys, and the
  // queries of new rows. A warp takes a vector at a time.
  __device__ void prepare(int first, int n) {
    const int replayed = min(max(pending_ - first, 0), n), fresh = n - replayed;
#pragma unroll 1
    for (int vector = warp_; vector < n + 2 * fresh; vector += warps_) {
      const bool is_value = vector >= n + fresh, is_query = !is_value && vector >= n;
      const int i = is_value ? vector - 2 * fresh : is_query ? vector - fresh : vector;
      const int c = is_value ? kKeyChannels : is_query ? 0 : kMixDim;
      const float4 x = this->channels_of(first + i, c + lane_ * 4);
      if (!is_value) this->keep_key(x, i, is_query);
    }
  }

  // Row `row` of the round, whose key and query are in place i.
  __device__ void step(int row, int i, float* columns) {
    const bool replayed = row < pending_;
    const float4 v = widen4(shared_.rows[row] + kKeyChannels + column_);
    const float4 out = s_.step(head_.gates[row], shared_.k[i], shared_.q[i], v, keys_, replayed);
    if (row == pending_ - 1) s_.store(columns, kMixDim);
    if (replayed || keys_ != 0) return;
    *reinterpret_cast<float4*>(head_.o[row - pending_] + column_) = out;
  }

  HeadShared<T>& head_;
  const int keys_;    // which part of them
  const int column_;  // the first of the lane's four
  float a_log_ = 0, dt_bias_ = 0;
  MixState s_;
};

template <class T, ops::GateActivation kActivation>
__global__ void __launch_bounds__(kHeadWarps* kWarp, 2)
    mix_heads_kernel(const __grid_constant__ MixArgs<T> a) {
  allow_next_kernel();
  extern __shared__ __align__(16) unsigned char head_shared[];
  const int block = static_cast<int>(blockIdx.x), group = static_cast<int>(gridDim.x);
  const int k_head = static_cast<int>(blockIdx.y);
  HeadMixer<T, kActivation> mixer(a, *reinterpret_cast<HeadShared<T>*>(head_shared),
                                  {.k_head = k_head,
                                   .first_head = k_head * group + block,
                                   .num_heads = 1,
                                   .first_column = 0,
                                   .block = block,
                                   .num_blocks = group});
  mixer.begin();
  wait_for_previous_kernel();
  mixer.run();
}

template <class T>
void run(const CudaBackend& backend, const ops::GatedDeltaMixArgs& args) {
  const ops::GdnShape& shape = args.rule.shape;
  const auto group = static_cast<unsigned>(shape.num_v_heads / shape.num_k_heads);
  const dim3 grid(group, static_cast<unsigned>(shape.num_k_heads),
                  static_cast<unsigned>(args.rule.batch.num_segments));
  void (*const kernel)(MixArgs<T>) = args.norm.activation == ops::GateActivation::kSilu
                                         ? mix_heads_kernel<T, ops::GateActivation::kSilu>
                                         : mix_heads_kernel<T, ops::GateActivation::kSigmoid>;
  launch_overlapping_clusters(backend, group, kernel, grid, kHeadWarps * kWarp,
                              sizeof(HeadShared<T>), mix_args<T>(args));
}

}  // namespace

std::size_t mix_heads_shared_bytes(DType dtype) {
  return dtype == DType::kBF16 ? sizeof(HeadShared<bf16>) : sizeof(HeadShared<float>);
}

void gated_delta_mix_heads(const CudaBackend& backend, const ops::GatedDeltaMixArgs& args) {
  with_float_type(args.rule.dtype, [&](auto type) { run<decltype(type)>(backend, args); });
}

}  // namespace tandem::cuda
