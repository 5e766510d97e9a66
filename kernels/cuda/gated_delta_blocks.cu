// The gated delta rule in blocks of 64 rows, for prompt rows. A thread block owns one head and 32
// value columns of one segment, and goes through the segment's blocks with their part of the state
// in shared memory; columns never meet, so other columns are other thread blocks.
//
// Every element - of a Gram matrix, a pseudo-value, an output, the state - is one chain of
// multiply-adds in ascending order over keys or rows, whichever thread computes it and however its
// operands were tiled. So a row comes out the same whether its block arrives whole or in pieces.
#include "kernels/cuda/gated_delta.cuh"

namespace tandem::cuda {
namespace {

constexpr int kBlock = ops::kGdnBlock;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kColumns = 32;              // of the value dimension
constexpr int kColumnRow = kColumns + 4;  // padded
constexpr int kGramRow = kBlock + 4;
constexpr int kTile = 16;  // rows of queries at a time, rows of a triangle

// Shared memory of a thread block. Rows of k and q are key_row apart.
struct BlockShared {
  int key_row;
  float* k;        // [64][key_row], k^
  float* q;        // [16][key_row], q^ of a tile
  float* kk;       // [64][kGramRow]: e^{c_i - c_j} (k_i . k_j), j < i
  float* qk;       // [16][kGramRow]: the same with q of the tile, j <= i
  float* n;        // [64][kColumnRow], pseudo-values
  float* s;        // [k_dim][kColumnRow], state
  float* c;        // [64], log-decay from the block's start
  float* beta;     // [64]
  float* weights;  // [64], of the fold

  static __host__ __device__ int key_row_of(int k_dim) { return k_dim + 4; }
  static std::size_t bytes(int k_dim) {
    const int floats = (kBlock + kTile) * key_row_of(k_dim) + (kBlock + kTile) * kGramRow +
                       (kBlock + k_dim) * kColumnRow + 3 * kBlock;
    return sizeof(float) * static_cast<std::size_t>(floats);
  }
  __device__ BlockShared(float* at, int k_dim) : key_row(key_row_of(k_dim)) {
    const auto take = [&at](int count) { return at += count, at - count; };
    k = take(kBlock * key_row);
    q = take(kTile * key_row);
    kk = take(kBlock * kGramRow);
    qk = take(kTile * kGramRow);
    n = take(kBlock * kColumnRow);
    s = take(k_dim * kColumnRow);
    c = take(kBlock);
    beta = take(kBlock);
    weights = take(kBlock);
  }
};

__device__ __forceinline__ float4 at4(const float* p) {
  return *reinterpret_cast<const float4*>(p);
}

// sum += x . y, four elements in ascending order.
__device__ __forceinline__ void dot4(const float4& x, const float4& y, float& sum) {
  sum = fmaf(x.x, y.x, sum);
  sum = fmaf(x.y, y.y, sum);
  sum = fmaf(x.z, y.z, sum);
  sum = fmaf(x.w, y.w, sum);
}

// sum += factor * y, element by element.
__device__ __forceinline__ void axpy4(float factor, const float4& y, float4& sum) {
  sum.x = fmaf(factor, y.x, sum.x);
  sum.y = fmaf(factor, y.y, sum.y);
  sum.z = fmaf(factor, y.z, sum.z);
  sum.w = fmaf(factor, y.w, sum.w);
}

// sum += S^T x over all keys: x one row of keys or queries, S at four columns.
__device__ __forceinline__ void read_state(const float* x, const float* s, int k_dim, float4& sum) {
  for (int k = 0; k < k_dim; k += 4) {
    const float4 row = at4(x + k);
    axpy4(row.x, at4(s + k * kColumnRow), sum);
    axpy4(row.y, at4(s + (k + 1) * kColumnRow), sum);
    axpy4(row.z, at4(s + (k + 2) * kColumnRow), sum);
    axpy4(row.w, at4(s + (k + 3) * kColumnRow), sum);
  }
}

template <class T>
class BlockRule {
 public:
  __device__ BlockRule(const ops::GatedDeltaRuleArgs& a, float* shared)
      : a_(a),
        m_(shared, a.shape.k_dim),
        segment_(a.batch.segments[blockIdx.x]),
        v_head_(static_cast<int>(blockIdx.y)),
        first_column_(static_cast<int>(blockIdx.z) * kColumns),
        columns_(min(kColumns, a.shape.v_dim - first_column_)),
        k_dim_(a.shape.k_dim),
        head_(gdn_head(a.shape, v_head_)),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / kWarp),
        lane_(thread_ % kWarp) {}

  __device__ void run() {
    move_state<true>();
    bool folded = false;
    for (int done = 0; done < segment_.num_rows;) {
      begin_ = (segment_.start_position + done) % kBlock;
      end_ = min(kBlock, begin_ + segment_.num_rows - done);
      first_row_ = segment_.first_row + done;
      done += end_ - begin_;
      load_block();
      key_products();
      start_values();
      solve();
      for (int tile = begin_ / kTile * kTile; tile < end_; tile += kTile) outputs(tile);
      const bool prompt_ends = done == segment_.num_rows && segment_.ends_prompt != 0;
      if (end_ == kBlock || prompt_ends) {
        fold();
        folded = true;
      } else {
        store_open_values();
      }
      __syncthreads();  // before the next block overwrites what this one read
    }
    if (folded) move_state<false>();
  }

 private:
  __device__ const T* qkv(int row_of_block) const {
    return static_cast<const T*>(a_.qkv) +
           (std::int64_t{first_row_} + row_of_block - begin_) * a_.shape.channels();
  }

  template <bool kLoad>
  __device__ void move_state() {
    float* state = a_.state.s +
                   (std::int64_t{segment_.slot} * a_.shape.num_v_heads + v_head_) * k_dim_ *
                       std::int64_t{a_.shape.v_dim} +
                   first_column_;
    for (int i = thread_; i < k_dim_ * kColumns; i += kThreads) {
      const int k = i / kColumns, d = i % kColumns;
      float* from = state + std::int64_t{k} * a_.shape.v_dim + d;
      if (kLoad) {
        m_.s[k * kColumnRow + d] = d < columns_ ? *from : 0.0f;
      } else if (d < columns_) {
        *from = m_.s[k * kColumnRow + d];
      }
    }
    __syncthreads();
  }

  // Keys, gates and, for rows of earlier chunks, pseudo-values. Rows at and beyond end_ are zeros.
  __device__ void load_block() {
    const OpenBlock open = begin_ > 0 ? open_block_of(a_, segment_.slot, v_head_) : OpenBlock{};
    for (int i = warp_; i < kBlock; i += kWarps) {
      float* k = m_.k + i * m_.key_row;
      const bool is_new = i >= begin_ && i < end_;
      const T* x = is_new ? qkv(i) + head_.k : nullptr;
      const float scale = is_new ? norm_scale(x, k_dim_) : 0.0f;
      for (int j = lane_; j < k_dim_; j += kWarp) {
        k[j] = is_new ? load_float(x + j) * scale : i < begin_ ? open.k[i * k_dim_ + j] : 0.0f;
      }
      m_.n[i * kColumnRow + lane_] = i < begin_ && lane_ < columns_
                                         ? open.n[i * a_.shape.v_dim + first_column_ + lane_]
                                         : 0.0f;
      if (lane_ != 0) continue;
      const GdnGate gate = is_new ? gate_of_row(a_, first_row_ + i - begin_, v_head_) : GdnGate{};
      m_.beta[i] = gate.beta;
      m_.c[i] = i < begin_ ? open.c[i] : gate.g;
    }
    __syncthreads();
    if (thread_ == 0) {
      float c = begin_ == 0 ? 0.0f : m_.c[begin_ - 1];
      for (int i = begin_; i < end_; ++i) m_.c[i] = c += m_.c[i];
    }
    __syncthreads();
  }

  __device__ float decayed(int i, int j, float product) const {
    return expf(m_.c[i] - m_.c[j]) * product;
  }

  // kk for rows begin_ .. end_-1.
  __device__ void key_products() {
    const int tx = thread_ % 16, ty = thread_ / 16;
    float sums[4][4] = {};
    for (int k = 0; k < k_dim_; k += 4) {
      float4 x[4], y[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[i] = at4(m_.k + (ty + 16 * i) * m_.key_row + k);
        y[i] = at4(m_.k + (tx + 16 * i) * m_.key_row + k);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) dot4(x[i], y[j], sums[i][j]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = ty + 16 * i, key = tx + 16 * j;
        const bool used = key < row && row >= begin_ && row < end_;
        m_.kk[row * kGramRow + key] = used ? decayed(row, key, sums[i][j]) : 0.0f;
      }
    }
  }

  // n_i = v_i - e^{c_i} S^T k_i for the new rows.
  __device__ void start_values() {
    const int d = thread_ % 8 * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = thread_ / 8 + half * 32;
      if (i < begin_ || i >= end_) continue;
      float4 read = {};
      read_state(m_.k + i * m_.key_row, m_.s + d, k_dim_, read);
      const T* v = qkv(i) + head_.v + first_column_ + d;
      const float minus_decay = -expf(m_.c[i]);
      float* n = m_.n + i * kColumnRow + d;
      const float reads[4] = {read.x, read.y, read.z, read.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        n[j] = d + j < columns_ ? fmaf(minus_decay, reads[j], load_float(v + j)) : 0.0f;
      }
    }
    __syncthreads();
  }

  // n_i = beta_i (n_i - sum_{j<i} kk_ij n_j): sixteen rows at a time, first minus all rows before
  // the sixteen, then row by row.
  __device__ void solve() {
    const int last = (end_ + kTile - 1) / kTile * kTile;
    for (int tile = begin_ / kTile * kTile; tile < last; tile += kTile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = tile + warp_ + half * kWarps;
        if (i < begin_) continue;
        float n = m_.n[i * kColumnRow + lane_];
        for (int j = 0; j < tile; ++j) {
          n = fmaf(-m_.kk[i * kGramRow + j], m_.n[j * kColumnRow + lane_], n);
        }
        m_.n[i * kColumnRow + lane_] = n;
      }
      __syncthreads();
      if (warp_ == 0) {
        float n[kTile];
#pragma unroll
        for (int i = 0; i < kTile; ++i) {
          n[i] = m_.n[(tile + i) * kColumnRow + lane_];
          if (tile + i < begin_) continue;
#pragma unroll
          for (int j = 0; j < i; ++j) {
            n[i] = fmaf(-m_.kk[(tile + i) * kGramRow + tile + j], n[j], n[i]);
          }
          n[i] = m_.beta[tile + i] * n[i];
          m_.n[(tile + i) * kColumnRow + lane_] = n[i];
        }
      }
      __syncthreads();
    }
  }

  // o_i = e^{c_i} S^T q_i + sum_{j<=i} qk_ij n_j for the new rows of a tile.
  __device__ void outputs(int tile) {
    for (int i = warp_; i < kTile; i += kWarps) {
      float* q = m_.q + i * m_.key_row;
      const bool is_new = tile + i >= begin_ && tile + i < end_;
      const T* x = is_new ? qkv(tile + i) + head_.q : nullptr;
      const float scale = is_new ? norm_scale(x, k_dim_) * query_factor(k_dim_) : 0.0f;
      for (int j = lane_; j < k_dim_; j += kWarp) q[j] = is_new ? load_float(x + j) * scale : 0.0f;
    }
    __syncthreads();
    const int i = thread_ / 16, tx = thread_ % 16;
    const float* q = m_.q + i * m_.key_row;
    float sums[4] = {};
    for (int k = 0; k < k_dim_; k += 4) {
      const float4 x = at4(q + k);
#pragma unroll
      for (int j = 0; j < 4; ++j) dot4(x, at4(m_.k + (tx + 16 * j) * m_.key_row + k), sums[j]);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int key = tx + 16 * j;
      m_.qk[i * kGramRow + key] = key <= tile + i ? decayed(tile + i, key, sums[j]) : 0.0f;
    }
    __syncthreads();
    if (tile + i >= begin_ && tile + i < end_) {
      const float decay = expf(m_.c[tile + i]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int d = tx + half * 16;
        float o = 0;
        for (int k = 0; k < k_dim_; ++k) o = fmaf(q[k], m_.s[k * kColumnRow + d], o);
        o *= decay;
        for (int j = 0; j <= tile + i; ++j) {
          o = fmaf(m_.qk[i * kGramRow + j], m_.n[j * kColumnRow + d], o);
        }
        const std::int64_t row = std::int64_t{first_row_} + tile + i - begin_;
        if (d < columns_) {
          a_.out[(row * a_.shape.num_v_heads + v_head_) * a_.shape.v_dim + first_column_ + d] = o;
        }
      }
    }
    __syncthreads();  // the tile's queries and products have been used
  }

  // S <- e^{c_last} S + sum_j e^{c_last - c_j} k_j n_j^T over the block's rows.
  __device__ void fold() {
    const float last = m_.c[end_ - 1];
    if (thread_ < end_) m_.weights[thread_] = expf(last - m_.c[thread_]);
    __syncthreads();
    const float decay = expf(last);
    const int d = thread_ % 8 * 4;
    for (int k = thread_ / 8 * 4; k < k_dim_; k += kThreads / 8 * 4) {
      float4 s[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[i] = at4(m_.s + (k + i) * kColumnRow + d);
        s[i] = {s[i].x * decay, s[i].y * decay, s[i].z * decay, s[i].w * decay};
      }
      for (int j = 0; j < end_; ++j) {
        const float weight = m_.weights[j];
        const float4 key = at4(m_.k + j * m_.key_row + k);
        const float4 n = at4(m_.n + j * kColumnRow + d);
        axpy4(weight * key.x, n, s[0]);
        axpy4(weight * key.y, n, s[1]);
        axpy4(weight * key.z, n, s[2]);
        axpy4(weight * key.w, n, s[3]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        *reinterpret_cast<float4*>(m_.s + (k + i) * kColumnRow + d) = s[i];
      }
    }
  }

  // Only this thread block reads and writes these columns. Keys and log-decays are everybody's: a
  // later kernel stores them, when nobody still reads those of the block before.
  __device__ void store_open_values() {
    const OpenBlock open = open_block_of(a_, segment_.slot, v_head_);
    for (int i = begin_ + warp_; i < end_; i += kWarps) {
      if (lane_ < columns_) {
        open.n[i * a_.shape.v_dim + first_column_ + lane_] = m_.n[i * kColumnRow + lane_];
      }
    }
  }

  const ops::GatedDeltaRuleArgs& a_;
  const BlockShared m_;
  const ops::Segment segment_;
  const int v_head_, first_column_, columns_, k_dim_;
  const GdnHead head_;
  const int thread_, warp_, lane_;
  int begin_ = 0, end_ = 0;  // the new rows, within their block
  int first_row_ = 0;        // of the batch: row begin_
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    gated_delta_blocks_kernel(const __grid_constant__ ops::GatedDeltaRuleArgs a) {
  extern __shared__ float4 shared[];
  BlockRule<T>(a, reinterpret_cast<float*>(shared)).run();
}

// Keys and log-decays of the rows that a segment leaves in an open block: the same values that the
// block kernel computed. One thread block a segment and head.
template <class T>
__global__ void __launch_bounds__(kThreads)
    gated_delta_open_kernel(const __grid_constant__ ops::GatedDeltaRuleArgs a) {
  const ops::Segment segment = a.batch.segments[blockIdx.x];
  const int end = (segment.start_position + segment.num_rows) % kBlock;
  if (end == 0 || segment.ends_prompt != 0) return;
  const int v_head = static_cast<int>(blockIdx.y);
  const int k_dim = a.shape.k_dim;
  const int begin = max(0, end - segment.num_rows);
  const std::int64_t first_row = std::int64_t{segment.first_row} + segment.num_rows - (end - begin);
  const OpenBlock open = open_block_of(a, segment.slot, v_head);
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  for (int i = begin + static_cast<int>(threadIdx.x / kWarp); i < end; i += kWarps) {
    const T* x = static_cast<const T*>(a.qkv) + (first_row + i - begin) * a.shape.channels() +
                 gdn_head(a.shape, v_head).k;
    const float scale = norm_scale(x, k_dim);
    for (int j = lane; j < k_dim; j += kWarp) open.k[i * k_dim + j] = load_float(x + j) * scale;
  }
  if (threadIdx.x != 0) return;
  float c = begin == 0 ? 0.0f : open.c[begin - 1];
  for (int i = begin; i < end; ++i) {
    open.c[i] = c += gate_of_row(a, first_row + i - begin, v_head).g;
  }
}

template <class T>
void run(const CudaBackend& backend, const ops::GatedDeltaRuleArgs& args) {
  const auto segments = static_cast<unsigned>(args.batch.num_segments);
  const auto heads = static_cast<unsigned>(args.shape.num_v_heads);
  launch(backend, gated_delta_blocks_kernel<T>,
         dim3(segments, heads, blocks_for(args.shape.v_dim, kColumns)), kThreads,
         BlockShared::bytes(args.shape.k_dim), args);
  if (args.state.open_block != nullptr) {
    launch(backend, gated_delta_open_kernel<T>, dim3(segments, heads), kThreads, 0, args);
  }
}

}  // namespace

void gated_delta_blocks(const CudaBackend& backend, const ops::GatedDeltaRuleArgs& args) {
  with_float_type(args.dtype, [&](auto type) { run<decltype(type)>(backend, args); });
}

}  // namespace tandem::cuda
