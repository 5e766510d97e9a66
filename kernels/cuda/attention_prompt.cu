// Paged attention of BF16 prompt rows. A block owns 64 queries - pairs of row and head of one KV
// head, rows of one segment - and goes through the context in tiles of 64 keys counted from index 0
// with a running softmax in registers:
//   scores [queries, keys] = Q K^T,   values [queries, dims] = P V
// Each of its four warps has 16 queries. Queries, one tile of keys and one of values lie in shared
// memory; the next keys come while values are weighed, the next values while keys are scored. On
// GPUs with more shared memory a second block on the processor fills the gaps. The probabilities go
// to the matrix units as two bf16 numbers, which keep 16 bits of them. A query's tiles, and their
// order, follow from cache indices alone, and a tile of which it sees nothing changes no bit.
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kKeyGroups = kTileKeys / 8;
static_assert(kWarps * 16 == kTileQueries && kTileKeys <= kThreads);

// Some queries of a segment, numbered row by row and head by head of the KV head's group.
struct QueryTile {
  int slot = 0;
  int first_row = 0;                 // of the segment, in the batch
  int first_query = 0, queries = 0;  // of the tile and of the segment
  int last_index = 0;                // the largest that one of them sees
};

// Tiles segment by segment. False: there are fewer. All lanes of all warps call alike.
__device__ bool find_tile(const ops::PagedAttentionArgs& a, int group, int tile, QueryTile& found) {
  int before = 0;
  for (int first = 0; first < a.batch.num_segments; first += kWarp) {
    const int index = first + static_cast<int>(threadIdx.x % kWarp);
    const ops::Segment segment =
        index < a.batch.num_segments ? a.batch.segments[index] : ops::Segment{};
    const int tiles = (segment.num_rows * group + kTileQueries - 1) / kTileQueries;
    const int end = before + sum_to_lane(tiles);
    const unsigned holders = __ballot_sync(kAllLanes, tile < end);
    if (holders == 0) {
      before = __shfl_sync(kAllLanes, end, kWarp - 1);
      continue;
    }
    const int holder = __ffs(static_cast<int>(holders)) - 1;
    const auto held = [&](int x) { return __shfl_sync(kAllLanes, x, holder); };
    found.slot = held(segment.slot);
    found.first_row = held(segment.first_row);
    found.queries = held(segment.num_rows) * group;
    found.first_query = (tile - held(end - tiles)) * kTileQueries;
    const int last_query = min(found.first_query + kTileQueries, found.queries) - 1;
    found.last_index = held(segment.start_position) + last_query / group;
    return true;
  }
  return false;
}

template <int kDim>
struct Shared {
  static constexpr int kPieces = kDim / 8;  // of a row
  uint4* queries;                           // [kTileQueries][kPieces]
  uint4* keys;                              // [kTileKeys][kPieces]
  uint4* values;                            // [kTileKeys][kPieces]
  uint32_t* rows;                           // [2][kTileKeys], page rows of a tile and of the next

  __device__ explicit Shared(uint4* memory)
      : queries(memory),
        keys(queries + kTileQueries * kPieces),
        values(keys + kTileKeys * kPieces),
        rows(reinterpret_cast<uint32_t*>(values + kTileKeys * kPieces)) {}
};

// A thread copies one piece of every row of its warp's.
template <int kDim>
__device__ __forceinline__ void fetch_tile(const ops::PagedAttentionArgs& a, const void* plane,
                                           const uint32_t* rows, uint4* tile) {
  constexpr int kPieces = Shared<kDim>::kPieces;
  const int piece = static_cast<int>(threadIdx.x) % kPieces;
  const bool exists = piece * 8 < a.pages.head_dim;
  constexpr int kRowsAtOnce = kThreads / kPieces;
#pragma unroll
  for (int i = 0; i < kTileKeys / kRowsAtOnce; ++i) {
    const int key = i * kRowsAtOnce + static_cast<int>(threadIdx.x) / kPieces;
    const uint32_t row = rows[key];
    const bool valid = exists && row != kNoRow;
    copy_async16(tile + place_of_piece<kPieces>(key, piece),
                 static_cast<const bf16*>(plane) +
                     (valid ? std::int64_t{row} * a.pages.head_dim + piece * 8 : 0),
                 valid);
  }
}

template <int kDim>
__device__ __forceinline__ void fetch_queries(const ops::PagedAttentionArgs& a,
                                              const QueryTile& tile, int group, int kv_head,
                                              uint4* queries) {
  constexpr int kPieces = Shared<kDim>::kPieces;
  for (int i = static_cast<int>(threadIdx.x); i < kTileQueries * kPieces; i += kThreads) {
    const int query = tile.first_query + i / kPieces, piece = i % kPieces;
    const bool exists = query < tile.queries && piece * 8 < a.pages.head_dim;
    const std::int64_t index = std::int64_t{tile.first_row + query / group} * a.num_heads +
                               kv_head * group + query % group;
    copy_async16(
        queries + place_of_piece<kPieces>(i / kPieces, piece),
        static_cast<const bf16*>(a.q) + (exists ? index * a.pages.head_dim + piece * 8 : 0),
        exists);
  }
}

// A warp's scores: rows g and g + 8 of its queries (words 0, 1 and 2, 3), keys 8 n + 2t and
// 8 n + 2t + 1.
template <int kDim>
__device__ __forceinline__ void score_tile(const Shared<kDim>& s, float (&scores)[kKeyGroups][4]) {
  constexpr int kPieces = Shared<kDim>::kPieces;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int matrix = lane / 8, r = lane % 8;
  const int query = static_cast<int>(threadIdx.x / kWarp) * 16 + r + matrix % 2 * 8;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t q[4];
    load_matrices(q, s.queries + place_of_piece<kPieces>(query, 2 * step + matrix / 2));
#pragma unroll
    for (int pair = 0; pair < kKeyGroups / 2; ++pair) {
      uint32_t k[4];
      load_matrices(k, s.keys + place_of_piece<kPieces>(pair * 16 + r + matrix / 2 * 8,
                                                        2 * step + matrix % 2));
      mma_m16n8k16(scores[2 * pair], q[0], q[1], q[2], q[3], k[0], k[1]);
      mma_m16n8k16(scores[2 * pair + 1], q[0], q[1], q[2], q[3], k[2], k[3]);
    }
  }
}

// A warp's softmax under way: queries g and g + 8; values in dimensions 8 n + 2t and 8 n + 2t + 1.
template <int kDim>
struct Softmax {
  SoftmaxPart parts[2];  // sums of this lane's keys, until the end
  float values[kDim / 8][4] = {};
};

// Scores become probabilities relative to the running maximum; the values are brought to it.
template <int kDim>
__device__ __forceinline__ void soften_tile(const ops::PagedAttentionArgs& a, int first_index,
                                            const int (&ends)[2], float (&scores)[kKeyGroups][4],
                                            Softmax<kDim>& softmax) {
  const float factor = a.scale * kLog2E;
  const int key = first_index + static_cast<int>(threadIdx.x % 4) * 2;
  float rescale[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float largest = -kInfinity;
#pragma unroll
    for (int n = 0; n < kKeyGroups; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int index = key + n * 8 + j;
        float& score = scores[n][2 * i + j];
        const bool seen = index >= a.first_index && index < ends[i];
        score = seen ? score * factor : -kInfinity;
        largest = fmaxf(largest, score);
      }
    }
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 2));
    SoftmaxPart& part = softmax.parts[i];
    rescale[i] = raise(largest, part);
    const float relative_to = base(part);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kKeyGroups; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& score = scores[n][2 * i + j];
        score = exp2f(score - relative_to);
        sum += score;
      }
    }
    part.sum = fmaf(part.sum, rescale[i], sum);
  }
  const bool changes = rescale[0] != 1.0f || rescale[1] != 1.0f;
  if (!__any_sync(kAllLanes, changes)) return;  // times 1 changes no bit
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) softmax.values[n][i] *= rescale[i / 2];
  }
}

template <int kDim>
__device__ __forceinline__ void weigh_tile(const Shared<kDim>& s, const float (&p)[kKeyGroups][4],
                                           Softmax<kDim>& softmax) {
  constexpr int kPieces = Shared<kDim>::kPieces;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int matrix = lane / 8, r = lane % 8;
#pragma unroll
  for (int step = 0; step < kTileKeys / 16; ++step) {
    SplitPair pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&of_keys)[4] = p[2 * step + i / 2];
      pairs[i] = split_pair(of_keys[i % 2 * 2], of_keys[i % 2 * 2 + 1]);
    }
#pragma unroll
    for (int n = 0; n < kDim / 16; ++n) {
      uint32_t v[4];
      load_transposed(v, s.values + place_of_piece<kPieces>(step * 16 + r + matrix % 2 * 8,
                                                            2 * n + matrix / 2));
      float(&low_dims)[4] = softmax.values[2 * n];
      float(&high_dims)[4] = softmax.values[2 * n + 1];
      mma_m16n8k16(low_dims, pairs[0].high, pairs[1].high, pairs[2].high, pairs[3].high, v[0],
                   v[1]);
      mma_m16n8k16(high_dims, pairs[0].high, pairs[1].high, pairs[2].high, pairs[3].high, v[2],
                   v[3]);
      mma_m16n8k16(low_dims, pairs[0].low, pairs[1].low, pairs[2].low, pairs[3].low, v[0], v[1]);
      mma_m16n8k16(high_dims, pairs[0].low, pairs[1].low, pairs[2].low, pairs[3].low, v[2], v[3]);
    }
  }
}

template <int kDim>
__device__ __forceinline__ void write_tile(const ops::PagedAttentionArgs& a, const QueryTile& tile,
                                           int group, int kv_head, Softmax<kDim>& softmax) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = softmax.parts[i].sum;
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    const int query = tile.first_query + static_cast<int>(threadIdx.x / kWarp) * 16 + g + 8 * i;
    if (query >= tile.queries) continue;
#pragma unroll
    for (int n = 0; n < kDim / 8; ++n) {
      if (n * 8 >= a.pages.head_dim) break;
      write_pair(a, tile.first_row + query / group, kv_head * group + query % group, n * 8 + 2 * t,
                 softmax.values[n][2 * i], softmax.values[n][2 * i + 1], sum);
    }
  }
}

// Two blocks of 98816 bytes fit an H200's processor, one fits a GB10's.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 2) attention_prompt_kernel(ops::PagedAttentionArgs a) {
  allow_next_kernel();
  wait_for_previous_kernel();
  extern __shared__ uint4 shared[];
  const Shared<kDim> s(shared);
  const int thread = static_cast<int>(threadIdx.x);
  const int kv_heads = a.pages.num_kv_heads;
  const int group = a.num_heads / kv_heads;
  const int kv_head = static_cast<int>(blockIdx.x) % kv_heads;
  QueryTile tile;
  // The last rows of a segment see most: they begin first.
  if (!find_tile(a, group, static_cast<int>((gridDim.x - 1 - blockIdx.x) / kv_heads), tile)) return;

  int ends[2];  // a query sees indices below; 0: it does not exist
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = tile.first_query + thread / kWarp * 16 + thread % kWarp / 4 + 8 * i;
    ends[i] = query < tile.queries ? a.batch.positions[tile.first_row + query / group] + 1 : 0;
  }
  const auto row_of = [&](int number) {
    const int index = number * kTileKeys + thread % kTileKeys;
    const bool exists = index >= a.first_index && index <= tile.last_index;
    return exists ? page_row(a.batch, a.pages, tile.slot, index, kv_head) : kNoRow;
  };
  const auto rows_of = [&](int number) { return s.rows + number % 2 * kTileKeys; };
  const int first = a.first_index / kTileKeys, last = tile.last_index / kTileKeys;
  const auto fetch_keys = [&](int number) {
    if (number <= last) fetch_tile<kDim>(a, a.pages.k_pages, rows_of(number), s.keys);
    commit_async();  // empty groups too, so that the count of groups stays that of tiles
  };
  const auto fetch_values = [&](int number) {
    if (number <= last) fetch_tile<kDim>(a, a.pages.v_pages, rows_of(number), s.values);
    commit_async();
  };

  if (thread < kTileKeys) rows_of(first)[thread] = row_of(first);
  __syncthreads();
  fetch_queries<kDim>(a, tile, group, kv_head, s.queries);
  fetch_keys(first);  // one group with the queries
  fetch_values(first);
  uint32_t next_row = row_of(first + 1);
  Softmax<kDim> softmax;
  for (int number = first; number <= last; ++number) {
    if (thread < kTileKeys) rows_of(number + 1)[thread] = next_row;
    next_row = row_of(number + 2);  // on its way for a whole tile
    wait_async<1>();
    __syncthreads();  // keys are there, and the next tile's page rows
    float scores[kKeyGroups][4] = {};
    score_tile<kDim>(s, scores);
    __syncthreads();  // keys have been used
    fetch_keys(number + 1);
    soften_tile<kDim>(a, number * kTileKeys, ends, scores, softmax);
    wait_async<1>();
    __syncthreads();  // values are there
    weigh_tile<kDim>(s, scores, softmax);
    __syncthreads();  // values have been used
    fetch_values(number + 1);
  }
  write_tile<kDim>(a, tile, group, kv_head, softmax);
}

}  // namespace

void attention_prompt(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                      const AttentionSize& size) {
  const PromptPlan plan = plan_prompt(size);
  const auto grid = static_cast<unsigned>(plan.grid);
  if (padded_head_dim(size.head_dim) == 128) {
    launch_overlapping(backend, attention_prompt_kernel<128>, grid, kThreads, plan.shared_bytes,
                       args);
  } else {
    launch_overlapping(backend, attention_prompt_kernel<256>, grid, kThreads, plan.shared_bytes,
                       args);
  }
}

}  // namespace tandem::cuda
