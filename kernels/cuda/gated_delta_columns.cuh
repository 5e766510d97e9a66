// The recurrence of the gated delta rule on columns of the state, which one column (one value
// dimension) never shares with another: a lane keeps 16 keys of four neighbouring columns in
// registers for a whole round. A sum over keys is one chain in each lane, then a tree over the
// lanes that share the columns. Both kernels of generated rows are made of these, so they agree to
// the bit.
#pragma once

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/reduce.cuh"

namespace tandem::cuda {

inline constexpr int kLaneColumns = 4;  // neighbouring columns of a lane
inline constexpr int kLaneKeys = 16;    // keys of a lane
// In shared memory: eight lanes that read the same of their parts use all banks once.
inline constexpr int kPaddedKeys = kLaneKeys + 4;

// Where key d of a row lies in shared memory.
__device__ __forceinline__ int padded_place(int d) {
  return d / kLaneKeys * kPaddedKeys + d % kLaneKeys;
}

__device__ __forceinline__ float4 widen4(const float* x) {
  return *reinterpret_cast<const float4*>(x);
}
__device__ __forceinline__ float4 widen4(const bf16* x) {
  return widen4(*reinterpret_cast<const uint2*>(x));
}

__device__ __forceinline__ float4 scaled(const float4& x, float factor) {
  return make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
}

// sums += factor * x, each element by itself.
__device__ __forceinline__ void add_scaled(float factor, const float4& x, float4& sums) {
  sums.x = fmaf(factor, x.x, sums.x);
  sums.y = fmaf(factor, x.y, sums.y);
  sums.z = fmaf(factor, x.z, sums.z);
  sums.w = fmaf(factor, x.w, sums.w);
}

// One chain; squares so far come in.
__device__ __forceinline__ float add_squares(const float4& x, float squares) {
  squares = fmaf(x.x, x.x, squares);
  squares = fmaf(x.y, x.y, squares);
  squares = fmaf(x.z, x.z, squares);
  return fmaf(x.w, x.w, squares);
}

// What makes a key of unit length, from a lane's share of its squares.
__device__ __forceinline__ float unit_factor(float squares) {
  return 1.0f / sqrtf(warp_sum(squares) + 1e-6f);
}

struct RowGate {
  float decay = 0, beta = 0;
};

// A lane's share of the state. kParts: lanes of a column; keys and queries are zero beyond k_dim.
template <int kParts>
class StateColumns {
 public:
  static constexpr int kLaneGroups = kWarp / kParts;  // groups of columns of a warp
  static constexpr int kWarpColumns = kLaneGroups * kLaneColumns;

  // Of the lane: which keys, and the first of its columns among the warp's.
  static __device__ __forceinline__ int part(int lane) { return lane / kLaneGroups; }
  static __device__ __forceinline__ int column(int lane) {
    return lane % kLaneGroups * kLaneColumns;
  }

  // `from`, `to`: the lane's first key and column, in memory, where a state is needed once a round:
  // caches had better keep what else they have (ld.cs, st.cs).
  __device__ __forceinline__ void load(const float* from, int v_dim, bool exists) {
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) {
      s_[i] = exists ? __ldcs(reinterpret_cast<const float4*>(from + i * v_dim))
                     : make_float4(0, 0, 0, 0);
    }
  }
  __device__ __forceinline__ void load_shared(const float* from, int v_dim) {
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) s_[i] = widen4(from + i * v_dim);
  }
  __device__ __forceinline__ void store(float* to, int v_dim) const {
#pragma unroll
    for (int i = 0; i < kLaneKeys; ++i) __stcs(reinterpret_cast<float4*>(to + i * v_dim), s_[i]);
  }

  // One row; its outputs, unless it is replayed. k, q: padded rows in shared memory.
  __device__ __forceinline__ float4 step(const RowGate& gate, const float* k_row,
                                         const float* q_row, const float4& v, int part,
                                         bool replayed) {
    const auto* k = reinterpret_cast<const float4*>(k_row + part * kPaddedKeys);
    const auto* q = reinterpret_cast<const float4*>(q_row + part * kPaddedKeys);
    float4 read = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kLaneKeys; i += 4) {
      const float4 key = k[i / 4];
      const float keys[4] = {key.x, key.y, key.z, key.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s_[i + j] = scaled(s_[i + j], gate.decay);
        add_scaled(keys[j], s_[i + j], read);
      }
    }
    read = column_sums(read);
    const float4 u = make_float4(gate.beta * (v.x - read.x), gate.beta * (v.y - read.y),
                                 gate.beta * (v.z - read.z), gate.beta * (v.w - read.w));
    float4 out = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kLaneKeys; i += 4) {
      const float4 key = k[i / 4], query = q[i / 4];
      const float keys[4] = {key.x, key.y, key.z, key.w};
      const float queries[4] = {query.x, query.y, query.z, query.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        add_scaled(keys[j], u, s_[i + j]);
        add_scaled(queries[j], s_[i + j], out);
      }
    }
    return replayed ? out : column_sums(out);
  }

 private:
  // Over the lanes of a column; all of them get it.
  static __device__ __forceinline__ float column_sum(float sum) {
#pragma unroll
    for (int distance = kLaneGroups; distance < kWarp; distance *= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, distance);
    }
    return sum;
  }
  static __device__ __forceinline__ float4 column_sums(const float4& x) {
    return make_float4(column_sum(x.x), column_sum(x.y), column_sum(x.z), column_sum(x.w));
  }

  float4 s_[kLaneKeys];
};

}  // namespace tandem::cuda
