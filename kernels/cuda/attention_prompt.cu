// Paged attention of prompt rows over BF16 pages. Queries, one tile of keys and one of values lie
// in shared memory; the next keys come while values are weighed, the next values while keys are
// scored. On GPUs with more shared memory a second block on the processor fills the gaps.
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/attention_prompt.cuh"
#include "kernels/cuda/device/dependency.cuh"

namespace tandem::cuda {
namespace {

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
  constexpr int kRowsAtOnce = kPromptThreads / kPieces;
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

// Two blocks of 98816 bytes fit an H200's processor, one fits a GB10's.
template <int kDim>
__global__ void __launch_bounds__(kPromptThreads, 2)
    attention_prompt_kernel(ops::PagedAttentionArgs a) {
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
  PromptSoftmax<kDim> softmax;
  for (int number = first; number <= last; ++number) {
    if (thread < kTileKeys) rows_of(number + 1)[thread] = next_row;
    next_row = row_of(number + 2);  // on its way for a whole tile
    wait_async<1>();
    __syncthreads();  // keys are there, and the next tile's page rows
    float scores[kKeyGroups][4] = {};
    score_tile<kDim>(s.queries, s.keys, scores);
    __syncthreads();  // keys have been used
    fetch_keys(number + 1);
    soften_tile<kDim>(a, number * kTileKeys, ends, NoScales{}, scores, softmax);
    wait_async<1>();
    __syncthreads();  // values are there
    weigh_tile<kDim>(s.values, scores, softmax);
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
    launch_overlapping(backend, attention_prompt_kernel<128>, grid, kPromptThreads,
                       plan.shared_bytes, args);
  } else {
    launch_overlapping(backend, attention_prompt_kernel<256>, grid, kPromptThreads,
                       plan.shared_bytes, args);
  }
}

}  // namespace tandem::cuda
