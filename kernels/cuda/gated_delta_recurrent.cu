// The gated delta rule row by row, for generated rows. A column of the state (one value dimension)
// never meets another, so two or four threads keep one column in registers for the whole round: it
// is read once, replayed rows are applied, it is stored, and the new rows run on what the registers
// hold. A thread sums over its 64 key dimensions in four interleaved chains, added as a tree; then
// the threads of the column are added as a tree.
#include "kernels/cuda/gated_delta.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRecordThreads = 320;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRowsAtOnce = 8;  // whose keys and queries wait in shared memory
constexpr int kChains = 4;
constexpr int kPart = 64;               // key dimensions of a thread
constexpr int kPaddedPart = kPart + 4;  // in shared memory: the parts' broadcasts use other banks

struct RowInputs {
  float decay = 0, beta = 0;
};

// kParts: threads of a column; keys and queries are zero beyond k_dim.
template <int kParts>
struct RoundShared {
  float k[kRowsAtOnce][kParts * kPaddedPart];
  float q[kRowsAtOnce][kParts * kPaddedPart];
  RowInputs inputs[kRowsAtOnce];
};

template <class T, int kParts>
class Column {
 public:
  static constexpr int kColumns = kThreads / kParts;  // of a block
  static constexpr int kWarpColumns = kWarp / kParts;

  __device__ Column(const ops::GatedDeltaRuleArgs& a, RoundShared<kParts>& shared)
      : a_(a),
        shared_(shared),
        segment_(a.batch.segments[blockIdx.x]),
        v_head_(static_cast<int>(blockIdx.y)),
        part_(static_cast<int>(threadIdx.x % kWarp) / kWarpColumns),
        d_(static_cast<int>(blockIdx.z) * kColumns +
           static_cast<int>(threadIdx.x / kWarp) * kWarpColumns +
           static_cast<int>(threadIdx.x) % kWarpColumns),
        exists_(d_ < a.shape.v_dim),
        head_(gdn_head(a.shape, v_head_)),
        record_(std::int64_t{segment_.slot} * a.state.max_round_rows) {}

  __device__ void run() {
    const ops::GdnShape& shape = a_.shape;
    float* state = a_.state.s +
                   (std::int64_t{segment_.slot} * shape.num_v_heads + v_head_) * shape.k_dim *
                       std::int64_t{shape.v_dim} +
                   std::int64_t{part_} * kPart * shape.v_dim + d_;
    const int own = exists_ ? min(kPart, shape.k_dim - part_ * kPart) : 0;
#pragma unroll
    for (int i = 0; i < kPart; ++i) s_[i] = i < own ? state[i * shape.v_dim] : 0.0f;
    const int pending = a_.batch.pending_rows[segment_.slot];
    run_rows<true>(pending);
    if (pending > 0) {
#pragma unroll
      for (int i = 0; i < kPart; ++i) {
        if (i < own) state[i * shape.v_dim] = s_[i];
      }
    }
    run_rows<false>(segment_.num_rows);
  }

 private:
  template <bool kReplay>
  __device__ const T* qkv_of(int row) const {
    const std::int64_t channels = a_.shape.channels();
    return kReplay ? static_cast<const T*>(a_.state.round_qkv) + (record_ + row) * channels
                   : static_cast<const T*>(a_.qkv) + (segment_.first_row + row) * channels;
  }

  template <bool kReplay>
  __device__ void prepare(int first, int rows) {
    const int warp = static_cast<int>(threadIdx.x / kWarp);
    const int lane = static_cast<int>(threadIdx.x % kWarp);
    const int k_dim = a_.shape.k_dim;
    for (int i = warp; i < 2 * rows; i += kWarps) {
      const T* qkv = qkv_of<kReplay>(first + i / 2);
      const bool is_key = i % 2 == 0;
      const T* x = qkv + (is_key ? head_.k : head_.q);
      const float scale = norm_scale(x, k_dim) * (is_key ? 1.0f : query_factor(k_dim));
      float* to = is_key ? shared_.k[i / 2] : shared_.q[i / 2];
      for (int j = lane; j < kParts * kPart; j += kWarp) {
        to[j / kPart * kPaddedPart + j % kPart] = j < k_dim ? load_float(x + j) * scale : 0.0f;
      }
    }
    if (static_cast<int>(threadIdx.x) < rows) {
      const int row = first + static_cast<int>(threadIdx.x);
      const GdnGate gate = kReplay ? recorded_gate(a_, record_ + row, v_head_)
                                   : gate_of_row(a_, segment_.first_row + row, v_head_);
      shared_.inputs[threadIdx.x] = {expf(gate.g), gate.beta};
    }
  }

  // Of the column's threads, each with four chains; all of them get it.
  static __device__ __forceinline__ float column_sum(const float (&chains)[kChains]) {
    float sum = (chains[0] + chains[1]) + (chains[2] + chains[3]);
#pragma unroll
    for (int distance = kWarpColumns; distance < kWarp; distance *= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, distance);
    }
    return sum;
  }

  // One row on the column; returns its output.
  __device__ __forceinline__ float step(int row, float v) {
    const float decay = shared_.inputs[row].decay, beta = shared_.inputs[row].beta;
    const auto* k = reinterpret_cast<const float4*>(shared_.k[row] + part_ * kPaddedPart);
    const auto* q = reinterpret_cast<const float4*>(shared_.q[row] + part_ * kPaddedPart);
    float read[kChains] = {}, out[kChains] = {};
#pragma unroll
    for (int i = 0; i < kPart; i += 4) {
      const float4 key = k[i / 4];
      const float keys[4] = {key.x, key.y, key.z, key.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s_[i + j] *= decay;
        read[j] = fmaf(keys[j], s_[i + j], read[j]);
      }
    }
    const float u = beta * (v - column_sum(read));
#pragma unroll
    for (int i = 0; i < kPart; i += 4) {
      const float4 key = k[i / 4], query = q[i / 4];
      const float keys[4] = {key.x, key.y, key.z, key.w};
      const float queries[4] = {query.x, query.y, query.z, query.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s_[i + j] = fmaf(keys[j], u, s_[i + j]);
        out[j] = fmaf(queries[j], s_[i + j], out[j]);
      }
    }
    return column_sum(out);
  }

  template <bool kReplay>
  __device__ void run_rows(int rows) {
    for (int first = 0; first < rows; first += kRowsAtOnce) {
      const int n = min(kRowsAtOnce, rows - first);
      __syncthreads();  // the rows before have been used
      prepare<kReplay>(first, n);
      __syncthreads();
      for (int i = 0; i < n; ++i) {
        const float v = exists_ ? load_float(qkv_of<kReplay>(first + i) + head_.v + d_) : 0.0f;
        const float o = step(i, v);
        if (kReplay || !exists_ || part_ != 0) continue;
        const std::int64_t row = segment_.first_row + first + i;
        a_.out[(row * a_.shape.num_v_heads + v_head_) * a_.shape.v_dim + d_] = o;
      }
    }
  }

  const ops::GatedDeltaRuleArgs& a_;
  RoundShared<kParts>& shared_;
  const ops::Segment segment_;
  const int v_head_;
  const int part_;  // which key dimensions
  const int d_;     // the column
  const bool exists_;
  const GdnHead head_;
  const std::int64_t record_;
  float s_[kPart];
};

template <class T, int kParts>
__global__ void __launch_bounds__(kThreads)
    gated_delta_recurrent_kernel(const __grid_constant__ ops::GatedDeltaRuleArgs a) {
  __shared__ __align__(16) RoundShared<kParts> shared;
  Column<T, kParts>(a, shared).run();
}

// Only after all heads are done: they replay the round that this overwrites. One block a row.
template <class T>
__global__ void __launch_bounds__(kRecordThreads)
    gated_delta_record_kernel(const __grid_constant__ ops::GatedDeltaRuleArgs a, int max_rows) {
  const ops::Segment segment = a.batch.segments[blockIdx.x];
  const std::int64_t channels = a.shape.channels();
  const int heads = a.shape.num_v_heads;
  for (int r = static_cast<int>(blockIdx.y); r < segment.num_rows; r += max_rows) {
    const std::int64_t row = segment.first_row + r;
    const std::int64_t record = std::int64_t{segment.slot} * a.state.max_round_rows + r;
    // Widths are multiples of 16 elements.
    const auto* from = reinterpret_cast<const int4*>(static_cast<const T*>(a.qkv) + row * channels);
    auto* to = reinterpret_cast<int4*>(static_cast<T*>(a.state.round_qkv) + record * channels);
    const auto pieces = static_cast<int>(channels * sizeof(T) / sizeof(int4));
#pragma unroll 4
    for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kRecordThreads) to[i] = from[i];
    float* gates = a.state.round_gates + record * 2 * heads;
    for (int h = static_cast<int>(threadIdx.x); h < heads; h += kRecordThreads) {
      const GdnGate gate = gate_of_row(a, row, h);
      gates[h] = gate.g;
      gates[heads + h] = gate.beta;
    }
  }
}

template <class T>
void run(const CudaBackend& backend, const ops::GatedDeltaRuleArgs& args) {
  const auto segments = static_cast<unsigned>(args.batch.num_segments);
  const auto heads = static_cast<unsigned>(args.shape.num_v_heads);
  const auto columns = [&](int parts) {
    return dim3(segments, heads, blocks_for(args.shape.v_dim, kThreads / parts));
  };
  static_assert(ops::kMaxGdnDim <= 4 * kPart);
  if (args.shape.k_dim <= 2 * kPart) {
    launch(backend, gated_delta_recurrent_kernel<T, 2>, columns(2), kThreads, 0, args);
  } else {
    launch(backend, gated_delta_recurrent_kernel<T, 4>, columns(4), kThreads, 0, args);
  }
  const int rows = args.state.max_round_rows;
  launch(backend, gated_delta_record_kernel<T>, dim3(segments, static_cast<unsigned>(rows)),
         kRecordThreads, 0, args, rows);
}

}  // namespace

void gated_delta_recurrent(const CudaBackend& backend, const ops::GatedDeltaRuleArgs& args) {
  with_float_type(args.dtype, [&](auto type) { run<decltype(type)>(backend, args); });
}

}  // namespace tandem::cuda
