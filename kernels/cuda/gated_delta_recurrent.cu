// The gated delta rule row by row, for generated rows of any shape; most rounds of known models are
// gated_delta_mix_*.cu's. A lane's columns of the state are read once, all loads under way
// together, replayed rows are applied, they are stored, and the new rows run on what the registers
// hold.
//
// Everything that the rows of a round bring - keys, queries, values, gates, of replayed and of new
// rows - is loaded while the state is on its way: a round waits for memory once, not once a row.
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/gated_delta.cuh"
#include "kernels/cuda/gated_delta_columns.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 64;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRecordThreads = 320;
constexpr int kRowsAtOnce = 12;  // a round of six after six accepted rows

// kParts: lanes of a column. Keys and queries are zero beyond k_dim.
template <int kParts>
struct RoundShape {
  static constexpr int kColumns = kWarps * StateColumns<kParts>::kWarpColumns;  // of a block
  static constexpr int kVector = kParts * kLaneKeys;                            // keys of a row
};

template <int kParts>
struct RoundShared {
  float k[kRowsAtOnce][kParts * kPaddedKeys];
  float q[kRowsAtOnce][kParts * kPaddedKeys];
  float v[kRowsAtOnce][RoundShape<kParts>::kColumns];
  RowGate gates[kRowsAtOnce];
};

template <class T, int kParts>
class Columns {
  using Shape = RoundShape<kParts>;
  using State = StateColumns<kParts>;

 public:
  __device__ Columns(const ops::GatedDeltaRuleArgs& a, RoundShared<kParts>& shared)
      : a_(a),
        shared_(shared),
        segment_(a.batch.segments[blockIdx.x]),
        pending_(a.batch.pending_rows[segment_.slot]),
        v_head_(static_cast<int>(blockIdx.y)),
        warp_(static_cast<int>(threadIdx.x) / kWarp),
        lane_(static_cast<int>(threadIdx.x) % kWarp),
        part_(State::part(lane_)),
        first_column_(static_cast<int>(blockIdx.z) * Shape::kColumns),
        column_(warp_ * State::kWarpColumns + State::column(lane_)),
        // Widths are multiples of 16.
        exists_(first_column_ + column_ < a.shape.v_dim),
        stored_(exists_ && part_ * kLaneKeys < a.shape.k_dim),
        head_(gdn_head(a.shape, v_head_)),
        record_(std::int64_t{segment_.slot} * a.state.max_round_rows) {}

  // Rows 0 .. pending - 1 are replayed, the others new.
  __device__ void run() {
    if (segment_.num_rows == 0) return;
    s_.load(state(), a_.shape.v_dim, stored_);
    const int rows = pending_ + segment_.num_rows;
    for (int first = 0; first < rows; first += kRowsAtOnce) {
      const int n = min(kRowsAtOnce, rows - first);
      __syncthreads();  // the rows before have been used
      prepare(first, n);
      __syncthreads();
      for (int i = 0; i < n; ++i) {
        const bool replayed = first + i < pending_;
        const float4 v = *reinterpret_cast<const float4*>(shared_.v[i] + column_);
        const float4 out =
            s_.step(shared_.gates[i], shared_.k[i], shared_.q[i], v, part_, replayed);
        if (first + i == pending_ - 1 && stored_) s_.store(state(), a_.shape.v_dim);
        if (replayed || !exists_ || part_ != 0) continue;
        const std::int64_t row = std::int64_t{segment_.first_row} + first + i - pending_;
        float* to = a_.out + (row * a_.shape.num_v_heads + v_head_) * a_.shape.v_dim;
        *reinterpret_cast<float4*>(to + first_column_ + column_) = out;
      }
    }
  }

 private:
  __device__ float* state() const {
    const std::int64_t v_dim = a_.shape.v_dim;
    return a_.state.s +
           ((std::int64_t{segment_.slot} * a_.shape.num_v_heads + v_head_) * a_.shape.k_dim +
            part_ * kLaneKeys) *
               v_dim +
           first_column_ + column_;
  }

  __device__ const T* qkv_of(int row) const {
    const std::int64_t channels = a_.shape.channels();
    return row < pending_ ? static_cast<const T*>(a_.state.round_qkv) + (record_ + row) * channels
                          : static_cast<const T*>(a_.qkv) +
                                (std::int64_t{segment_.first_row} + row - pending_) * channels;
  }

  // Rows first .. first + rows - 1 to shared memory.
  __device__ void prepare(int first, int rows) {
    if (static_cast<int>(threadIdx.x) < rows) {
      const int row = first + static_cast<int>(threadIdx.x);
      const GdnGate gate =
          row < pending_
              ? recorded_gate(a_, record_ + row, v_head_)
              : gate_of_row(a_, std::int64_t{segment_.first_row} + row - pending_, v_head_);
      shared_.gates[threadIdx.x] = {expf(gate.g), gate.beta};
    }
    constexpr int kGroups = Shape::kColumns / kLaneColumns;
    for (int i = static_cast<int>(threadIdx.x); i < rows * kGroups; i += kThreads) {
      const int column = i % kGroups * kLaneColumns;
      const bool exists = first_column_ + column < a_.shape.v_dim;
      const T* v = qkv_of(first + i / kGroups) + head_.v + first_column_ + column;
      *reinterpret_cast<float4*>(shared_.v[i / kGroups] + column) =
          exists ? widen4(v) : make_float4(0, 0, 0, 0);
    }
    for (int i = warp_; i < 2 * rows; i += kWarps * kVectorsAtOnce) {
      prepare_vectors(first, i, 2 * rows);
    }
  }

  // Keys (even vectors) and queries (odd ones) of a few rows, normed: vectors i, i + kWarps, ...
  // below `end`, one at a time to a warp, but loaded together.
  __device__ void prepare_vectors(int first, int i, int end) {
    constexpr int kPieces = Shape::kVector / (kWarp * kLaneColumns);
    float4 x[kVectorsAtOnce][kPieces];
#pragma unroll
    for (int n = 0; n < kVectorsAtOnce; ++n) {
      const int vector = i + n * kWarps;
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const int d = (p * kWarp + lane_) * kLaneColumns;
        const bool exists = vector < end && d < a_.shape.k_dim;
        const std::int64_t head = vector % 2 == 0 ? head_.k : head_.q;
        x[n][p] = exists ? widen4(qkv_of(first + vector / 2) + head + d) : make_float4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int n = 0; n < kVectorsAtOnce; ++n) {
      const int vector = i + n * kWarps;
      if (vector >= end) break;
      float squares = 0;
#pragma unroll
      for (int p = 0; p < kPieces; ++p) squares = add_squares(x[n][p], squares);
      const bool is_key = vector % 2 == 0;
      const float norm = unit_factor(squares);
      const float factor = is_key ? norm : norm * query_factor(a_.shape.k_dim);
      float* to = is_key ? shared_.k[vector / 2] : shared_.q[vector / 2];
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const int d = (p * kWarp + lane_) * kLaneColumns;
        *reinterpret_cast<float4*>(to + padded_place(d)) = scaled(x[n][p], factor);
      }
    }
  }

  static constexpr int kVectorsAtOnce = 4;

  const ops::GatedDeltaRuleArgs& a_;
  RoundShared<kParts>& shared_;
  const ops::Segment segment_;
  const int pending_;
  const int v_head_;
  const int warp_, lane_;
  const int part_;          // which keys
  const int first_column_;  // of the block
  const int column_;        // the first of the lane's, counted from there
  const bool exists_, stored_;
  const GdnHead head_;
  const std::int64_t record_;
  State s_;
};

template <class T, int kParts>
__global__ void __launch_bounds__(kThreads)
    gated_delta_recurrent_kernel(const __grid_constant__ ops::GatedDeltaRuleArgs a) {
  allow_next_kernel();
  wait_for_previous_kernel();
  __shared__ __align__(16) RoundShared<kParts> shared;
  Columns<T, kParts>(a, shared).run();
}

// Only after all heads are done: they replay the round that this overwrites. One block a row.
template <class T>
__global__ void __launch_bounds__(kRecordThreads)
    gated_delta_record_kernel(const __grid_constant__ ops::GatedDeltaRuleArgs a, int max_rows) {
  allow_next_kernel();
  wait_for_previous_kernel();
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
  const auto strips = [&](int columns) {
    return dim3(segments, heads, blocks_for(args.shape.v_dim, columns));
  };
  constexpr int kNarrow = 8, kWide = 16;  // lanes of a column
  static_assert(ops::kMaxGdnDim <= kWide * kLaneKeys);
  if (args.shape.k_dim <= kNarrow * kLaneKeys) {
    launch_overlapping(backend, gated_delta_recurrent_kernel<T, kNarrow>,
                       strips(RoundShape<kNarrow>::kColumns), kThreads, 0, args);
  } else {
    launch_overlapping(backend, gated_delta_recurrent_kernel<T, kWide>,
                       strips(RoundShape<kWide>::kColumns), kThreads, 0, args);
  }
  const int rows = args.state.max_round_rows;
  launch_overlapping(backend, gated_delta_record_kernel<T>,
                     dim3(segments, static_cast<unsigned>(rows)), kRecordThreads, 0, args, rows);
}

}  // namespace

void gated_delta_recurrent(const CudaBackend& backend, const ops::GatedDeltaRuleArgs& args) {
  with_float_type(args.dtype, [&](auto type) { run<decltype(type)>(backend, args); });
}

}  // namespace tandem::cuda
