// What the kernels of paged attention of prompt rows share. A block owns 64 queries - pairs of row
// and head of one KV head, rows of one segment - and goes through the context in tiles of 64 keys
// counted from index 0 with a running softmax in registers:
//   scores [queries, keys] = Q K^T,   values [queries, dims] = P V
// Each of its four warps has 16 queries. The probabilities go to the matrix units as two bf16
// numbers, which keep 16 bits of them. A query's tiles, and their order, follow from cache indices
// alone, and a tile of which it sees nothing changes no bit.
#pragma once

#include <type_traits>

#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/launch.cuh"

namespace tandem::cuda {

inline constexpr int kPromptThreads = 128;
inline constexpr int kKeyGroups = kTileKeys / 8;
static_assert(kPromptThreads / kWarp * 16 == kTileQueries && kTileKeys <= kPromptThreads);

// Some queries of a segment, numbered row by row and head by head of the KV head's group.
struct QueryTile {
  int slot = 0;
  int first_row = 0;                 // of the segment, in the batch
  int first_query = 0, queries = 0;  // of the tile and of the segment
  int last_index = 0;                // the largest that one of them sees
};

// Tiles segment by segment. False: there are fewer. All lanes of all warps call alike.
__device__ inline bool find_tile(const ops::PagedAttentionArgs& a, int group, int tile,
                                 QueryTile& found) {
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
__device__ __forceinline__ void fetch_queries(const ops::PagedAttentionArgs& a,
                                              const QueryTile& tile, int group, int kv_head,
                                              uint4* queries) {
  constexpr int kPieces = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kTileQueries * kPieces; i += kPromptThreads) {
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
__device__ __forceinline__ void score_tile(const uint4* queries, const uint4* keys,
                                           float (&scores)[kKeyGroups][4]) {
  constexpr int kPieces = kDim / 8;
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int matrix = lane / 8, r = lane % 8;
  const int query = static_cast<int>(threadIdx.x / kWarp) * 16 + r + matrix % 2 * 8;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t q[4];
    load_matrices(q, queries + place_of_piece<kPieces>(query, 2 * step + matrix / 2));
#pragma unroll
    for (int pair = 0; pair < kKeyGroups / 2; ++pair) {
      uint32_t k[4];
      load_matrices(
          k, keys + place_of_piece<kPieces>(pair * 16 + r + matrix / 2 * 8, 2 * step + matrix % 2));
      mma_m16n8k16(scores[2 * pair], q[0], q[1], q[2], q[3], k[0], k[1]);
      mma_m16n8k16(scores[2 * pair + 1], q[0], q[1], q[2], q[3], k[2], k[3]);
    }
  }
}

// A warp's softmax under way: queries g and g + 8; values in dimensions 8 n + 2t and 8 n + 2t + 1.
template <int kDim>
struct PromptSoftmax {
  SoftmaxPart parts[2];  // sums of this lane's keys, until the end
  float values[kDim / 8][4] = {};
};

// What scores and probabilities are multiplied with besides: of FP8 pages, the scales of a tile's
// keys and values, [kTileKeys] each in shared memory.
struct NoScales {};
struct TileScales {
  const float* keys;
  const float* values;
};

// Scores become probabilities relative to the running maximum; the values are brought to it.
template <int kDim, class Scales>
__device__ __forceinline__ void soften_tile(const ops::PagedAttentionArgs& a, int first_index,
                                            const int (&ends)[2], const Scales& scales,
                                            float (&scores)[kKeyGroups][4],
                                            PromptSoftmax<kDim>& softmax) {
  constexpr bool kScaled = std::is_same_v<Scales, TileScales>;
  // Of this lane's two keys of a group.
  const auto pair_of = [](const float* of_tile, int n) {
    return *reinterpret_cast<const float2*>(of_tile + n * 8 + threadIdx.x % 4 * 2);
  };
  const float factor = a.scale * kLog2E;
  const int key = first_index + static_cast<int>(threadIdx.x % 4) * 2;
  float rescale[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float largest = -kInfinity;
#pragma unroll
    for (int n = 0; n < kKeyGroups; ++n) {
      if constexpr (kScaled) {
        const float2 scale = pair_of(scales.keys, n);
        scores[n][2 * i] *= scale.x;
        scores[n][2 * i + 1] *= scale.y;
      }
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
      if constexpr (kScaled) {
        const float2 scale = pair_of(scales.values, n);
        scores[n][2 * i] *= scale.x;
        scores[n][2 * i + 1] *= scale.y;
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
__device__ __forceinline__ void weigh_tile(const uint4* values, const float (&p)[kKeyGroups][4],
                                           PromptSoftmax<kDim>& softmax) {
  constexpr int kPieces = kDim / 8;
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
      load_transposed(
          v, values + place_of_piece<kPieces>(step * 16 + r + matrix % 2 * 8, 2 * n + matrix / 2));
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
                                           int group, int kv_head, PromptSoftmax<kDim>& softmax) {
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

}  // namespace tandem::cuda
