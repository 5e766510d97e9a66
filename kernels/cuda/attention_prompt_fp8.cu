// Paged attention of prompt rows over FP8 pages. Codes come to shared memory, keys' and values'
// each to a place of their own; a thread makes bf16 of those that it has fetched itself, in one
// tile that keys and values take by turns. The matrix units are what bounds prompts, and each code
// is decoded once for all queries of a block. A key's scale multiplies its scores, a value's its
// probabilities.
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/attention_prompt.cuh"
#include "kernels/cuda/device/dependency.cuh"
#include "kernels/cuda/device/e4m3.cuh"
#include "kernels/cuda/device/pages.cuh"

namespace tandem::cuda {
namespace {

template <int kDim>
struct Shared {
  static constexpr int kPieces = kDim / 8;       // of a row in bf16
  static constexpr int kCodePieces = kDim / 16;  // of a row of codes
  uint4* queries;                                // [kTileQueries][kPieces]
  uint4* tile;                                   // [kTileKeys][kPieces], keys or values
  uint4* key_codes;                              // [kTileKeys * kCodePieces], by who fetches them
  uint4* value_codes;                            // [kTileKeys * kCodePieces]
  uint32_t* rows;  // [2][kTileKeys], page rows of a tile and of the next
  float* scales;   // [2][2][kTileKeys], of keys and of values, of a tile and of the next

  __device__ explicit Shared(uint4* memory)
      : queries(memory),
        tile(queries + kTileQueries * kPieces),
        key_codes(tile + kTileKeys * kPieces),
        value_codes(key_codes + kTileKeys * kCodePieces),
        rows(reinterpret_cast<uint32_t*>(value_codes + kTileKeys * kCodePieces)),
        scales(reinterpret_cast<float*>(rows + 2 * kTileKeys)) {}

  __device__ float* key_scales(int number) const { return scales + number % 2 * 2 * kTileKeys; }
  __device__ float* value_scales(int number) const { return key_scales(number) + kTileKeys; }
};

// Which of a tile's codes a thread fetches and decodes: piece thread % kCodePieces of every
// kRowsAtOnce-th key.
template <int kDim>
struct Share {
  static constexpr int kCodePieces = Shared<kDim>::kCodePieces;
  static constexpr int kRowsAtOnce = kPromptThreads / kCodePieces;
  static constexpr int kCount = kTileKeys / kRowsAtOnce;
  static __device__ __forceinline__ int piece() {
    return static_cast<int>(threadIdx.x) % kCodePieces;
  }
  static __device__ __forceinline__ int key(int i) {
    return i * kRowsAtOnce + static_cast<int>(threadIdx.x) / kCodePieces;
  }
  static __device__ __forceinline__ int place(int i) {
    return i * kPromptThreads + static_cast<int>(threadIdx.x);
  }
};

template <int kDim>
__device__ __forceinline__ void fetch_codes(const ops::PagedAttentionArgs& a, const void* plane,
                                            const uint32_t* rows, uint4* codes) {
  using Own = Share<kDim>;
  const bool exists = Own::piece() * 16 < a.pages.head_dim;
#pragma unroll
  for (int i = 0; i < Own::kCount; ++i) {
    const uint32_t row = rows[Own::key(i)];
    const bool valid = exists && row != kNoRow;
    copy_async16(codes + Own::place(i),
                 static_cast<const e4m3*>(plane) +
                     (valid ? std::int64_t{row} * a.pages.head_dim + Own::piece() * 16 : 0),
                 valid);
  }
}

// Zeros for keys that nobody sees, as for their codes.
__device__ __forceinline__ void fetch_scales(const ops::PagedAttentionArgs& a, const float* plane,
                                             const uint32_t* rows, int kv_head, float* scales) {
  const auto key = static_cast<int>(threadIdx.x);
  if (key >= kTileKeys) return;
  const uint32_t row = rows[key];
  const bool valid = row != kNoRow;
  copy_async4(scales + key, plane + (valid ? scale_index(a.pages.format, row, kv_head) : 0), valid);
}

// Eight codes as eight bf16 neighbours.
__device__ __forceinline__ uint4 decode_eight(uint32_t low, uint32_t high) {
  return {pair_of_codes(__byte_perm(low, 0, 0x1404)), pair_of_codes(__byte_perm(low, 0, 0x3424)),
          pair_of_codes(__byte_perm(high, 0, 0x1404)), pair_of_codes(__byte_perm(high, 0, 0x3424))};
}

template <int kDim>
__device__ __forceinline__ void decode_tile(const uint4* codes, uint4* tile) {
  using Own = Share<kDim>;
  constexpr int kPieces = Shared<kDim>::kPieces;
#pragma unroll
  for (int i = 0; i < Own::kCount; ++i) {
    const uint4 raw = codes[Own::place(i)];
    const int key = Own::key(i), piece = 2 * Own::piece();
    tile[place_of_piece<kPieces>(key, piece)] = decode_eight(raw.x, raw.y);
    tile[place_of_piece<kPieces>(key, piece + 1)] = decode_eight(raw.z, raw.w);
  }
}

// Two blocks of 99840 bytes fit an H200's processor, one fits a GB10's.
template <int kDim>
__global__ void __launch_bounds__(kPromptThreads, 2)
    attention_prompt_fp8_kernel(ops::PagedAttentionArgs a) {
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
  // A tile's scales come with its keys: the softmax takes both.
  const auto fetch_keys = [&](int number) {
    if (number <= last) {
      fetch_codes<kDim>(a, a.pages.k_pages, rows_of(number), s.key_codes);
      fetch_scales(a, a.pages.k_scales, rows_of(number), kv_head, s.key_scales(number));
      fetch_scales(a, a.pages.v_scales, rows_of(number), kv_head, s.value_scales(number));
    }
    commit_async();  // empty groups too, so that the count of groups stays that of tiles
  };
  const auto fetch_values = [&](int number) {
    if (number <= last) fetch_codes<kDim>(a, a.pages.v_pages, rows_of(number), s.value_codes);
    commit_async();
  };

  if (thread < kTileKeys) rows_of(first)[thread] = row_of(first);
  __syncthreads();
  fetch_queries<kDim>(a, tile, group, kv_head, s.queries);
  fetch_keys(first);  // one group with the queries
  fetch_values(first);
  uint32_t next_row = row_of(first + 1);
  PromptSoftmax<kDim> softmax;
  for (int number = first; number <= last; ++number) {
    if (thread < kTileKeys) rows_of(number + 1)[thread] = next_row;
    next_row = row_of(number + 2);  // on its way for a whole tile
    wait_async<1>();                // this thread's codes of keys are there
    decode_tile<kDim>(s.key_codes, s.tile);
    __syncthreads();  // keys, queries and scales are there, and the next tile's page rows
    fetch_keys(number + 1);
    float scores[kKeyGroups][4] = {};
    score_tile<kDim>(s.queries, s.tile, scores);
    const TileScales scales{s.key_scales(number), s.value_scales(number)};
    soften_tile<kDim>(a, number * kTileKeys, ends, scales, scores, softmax);
    wait_async<1>();  // this thread's codes of values are there
    __syncthreads();  // keys have been used
    decode_tile<kDim>(s.value_codes, s.tile);
    __syncthreads();  // values are there
    fetch_values(number + 1);
    weigh_tile<kDim>(s.tile, scores, softmax);
    __syncthreads();  // values have been used
  }
  write_tile<kDim>(a, tile, group, kv_head, softmax);
}

}  // namespace

void attention_prompt_fp8(const CudaBackend& backend, const ops::PagedAttentionArgs& args,
                          const AttentionSize& size) {
  const PromptPlan plan = plan_prompt(size);
  const auto grid = static_cast<unsigned>(plan.grid);
  if (padded_head_dim(size.head_dim) == 128) {
    launch_overlapping(backend, attention_prompt_fp8_kernel<128>, grid, kPromptThreads,
                       plan.shared_bytes, args);
  } else {
    launch_overlapping(backend, attention_prompt_fp8_kernel<256>, grid, kPromptThreads,
                       plan.shared_bytes, args);
  }
}

}  // namespace tandem::cuda
