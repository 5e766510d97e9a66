// The kernel behind linear_prompt.h. A block stays on its processor and takes one tile of 128 rows
// and kOuts outputs after the other. Its first warpgroup fills a ring of stages, 64 columns of x
// and of the weight each; two more multiply, 64 rows each. Stages are handed over through barriers,
// so the next tile's columns arrive while the last one's sums are written.
#pragma once

#include <algorithm>

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/device/weights.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_prompt_map.h"
#include "kernels/cuda/linear_prompt_plan.h"

namespace tandem::cuda::prompt {

using ops::WeightFormat;

constexpr int kRows = kPromptRows;  // of a tile
constexpr int kGroupRows = 64;      // of a consumer warpgroup
constexpr int kGroupThreads = 128;
constexpr int kConsumers = kRows / kGroupRows;
constexpr int kConsumerThreads = kConsumers * kGroupThreads;
constexpr int kThreads = kGroupThreads + kConsumerThreads;
constexpr std::size_t kHopperSharedBytes = 227 * 1024;

constexpr bool scales_column_blocks(WeightFormat format) {
  return format == WeightFormat::kFp8Block;
}

// What a tile's width leaves room for. Sums of subtrees that wait for their sibling lie in
// registers as far as these reach, then in shared memory: three levels serve eight leaves.
template <WeightFormat kFormat, int kOuts>
struct Tile {
  static constexpr bool kPromotes = scales_column_blocks(kFormat);
  static constexpr int kSums = kGroupRows * kOuts / kGroupThreads;  // of a thread
  static constexpr int kLevels = prompt_tree_levels(kOuts);
  static constexpr int kRegisterLevels = kOuts == 64 ? 3 : kOuts == 128 ? (kPromotes ? 1 : 2) : 0;
  static constexpr int kSharedLevels = kLevels - kRegisterLevels;
  static constexpr int kStages = kOuts == 256 ? 4 : kOuts == 128 && kPromotes ? 3 : 5;

  static constexpr int kXBytes = kRows * kTileRowBytes;
  static constexpr int kStageBytes = kXBytes + kOuts * kTileRowBytes;
  static constexpr int kWaitingBytes = kSharedLevels * kSums * kConsumerThreads * 4;
  static constexpr std::size_t kSharedBytes =
      kTileAlignment + kStages * kStageBytes + kWaitingBytes + 2 * kStages * sizeof(Barrier);
  static_assert(kSharedBytes <= kHopperSharedBytes);

  static constexpr int kProducers = kFormat == WeightFormat::kBf16 ? 1 : kGroupThreads;
  // A warpgroup that only starts copies needs few registers, one that decodes some more.
  static constexpr int kProducerRegisters = kFormat == WeightFormat::kBf16 ? 40 : 72;
  static constexpr int kConsumerRegisters = kFormat == WeightFormat::kBf16 ? 232 : 216;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= 3 * 168);
};

// The block's shared memory.
template <class Tile>
struct Shared {
  char* stages;     // [kStages][kStageBytes]: x, then the weight
  float* waiting;   // [kSharedLevels][kSums][kConsumerThreads]
  Barrier* filled;  // [kStages]
  Barrier* read;    // [kStages]

  __device__ explicit Shared(char* memory) {
    const uint32_t address = shared_address(memory);
    stages = memory + ((address + kTileAlignment - 1) / kTileAlignment * kTileAlignment - address);
    waiting = reinterpret_cast<float*>(stages + Tile::kStages * Tile::kStageBytes);
    filled = reinterpret_cast<Barrier*>(reinterpret_cast<char*>(waiting) + Tile::kWaitingBytes);
    read = filled + Tile::kStages;
  }
  __device__ char* x(int stage) const { return stages + stage * Tile::kStageBytes; }
  __device__ char* w(int stage) const { return x(stage) + Tile::kXBytes; }
};

// A place in the ring of stages, and the parity of the round.
template <int kStages>
struct Ring {
  int stage = 0;
  uint32_t round = 0;

  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, round ^= 1;
  }
};

// The tiles of a product. Row tiles vary fastest: those that share a weight's columns run together
// and find them in the second-level cache.
struct Tiles {
  int row_tiles, count;

  __device__ Tiles(const ops::LinearArgs& a, int outs)
      : row_tiles((a.num_rows + kRows - 1) / kRows),
        count(row_tiles * static_cast<int>((a.weight.out_features + outs - 1) / outs)) {}
  __device__ int first_row(int tile) const { return tile % row_tiles * kRows; }
  __device__ int first_out(int tile, int outs) const { return tile / row_tiles * outs; }
};

// The stages of this block's tiles in the order in which they are filled and read. A leaf's last
// may hold less than 64 columns of it: what follows there is not multiplied.
template <int kOuts>
struct Blocks {
  Tiles tiles;
  int leaves, leaf_columns;
  int tile, leaf = 0, begin = 0, leaf_end;  // begin: a column

  __device__ Blocks(const ops::LinearArgs& a, const LinearOrder& order)
      : tiles(a, kOuts),
        leaves(order.num_leaves),
        leaf_columns(static_cast<int>(order.leaf_columns)),
        tile(static_cast<int>(blockIdx.x)),
        leaf_end(leaf_columns) {}
  __device__ bool done() const { return tile >= tiles.count; }
  __device__ int first_row() const { return tiles.first_row(tile); }
  __device__ int first_out() const { return tiles.first_out(tile, kOuts); }
  __device__ __forceinline__ void next() {
    begin += kTileColumns;
    if (begin < leaf_end) return;
    begin = leaf_end;
    leaf_end += leaf_columns;
    if (++leaf < leaves) return;
    leaf = begin = 0;
    leaf_end = leaf_columns;
    tile += static_cast<int>(gridDim.x);
  }
};

// Copies of x, and of a weight that is bf16 already. One thread.
template <class Tile, int kOuts>
__device__ __forceinline__ void produce_copies(const CUtensorMap& x_map, const CUtensorMap& w_map,
                                               const ops::LinearArgs& a, const LinearOrder& order,
                                               const Shared<Tile>& shared) {
  Ring<Tile::kStages> at;
  for (Blocks<kOuts> b(a, order); !b.done(); b.next(), at.next()) {
    shared.read[at.stage].wait(at.round ^ 1);
    Barrier& filled = shared.filled[at.stage];
    filled.arrive_and_expect(Tile::kStageBytes);
    copy_tile(x_map, b.begin, b.first_row(), shared.x(at.stage), filled);
    copy_tile(w_map, b.begin, b.first_out(), shared.w(at.stage), filled);
  }
}

// Adds leaves as a tree while they arrive, like LeafTree, for more sums than registers hold.
template <class Tile>
class WaitingSums {
 public:
  __device__ explicit WaitingSums(float* of_thread) : shared_(of_thread) {}

  // `sums` becomes the root of the largest subtree that ends with this leaf.
  template <int kLevel = 0>
  __device__ __forceinline__ void add(int leaf, float (&sums)[Tile::kSums]) {
    if constexpr (kLevel < Tile::kLevels) {
      if ((leaf >> kLevel & 1) != 0) {
#pragma unroll
        for (int i = 0; i < Tile::kSums; ++i) sums[i] = waiting<kLevel>(i) + sums[i];
        add<kLevel + 1>(leaf, sums);
      } else {
#pragma unroll
        for (int i = 0; i < Tile::kSums; ++i) waiting<kLevel>(i) = sums[i];
      }
    }
  }

 private:
  template <int kLevel>
  __device__ __forceinline__ float& waiting(int i) {
    if constexpr (kLevel < Tile::kRegisterLevels) {
      return registers_[kLevel][i];
    } else {
      return shared_[((kLevel - Tile::kRegisterLevels) * Tile::kSums + i) * kConsumerThreads];
    }
  }

  float registers_[Tile::kRegisterLevels > 0 ? Tile::kRegisterLevels : 1][Tile::kSums];
  float* shared_;
};

// A consumer warpgroup's side of the ring.
template <class Tile>
class Products {
 public:
  __device__ Products(const Shared<Tile>& shared, int group) : shared_(shared), group_(group) {}

  // sums = the products of `columns` columns, a multiple of 16, from the next stages.
  __device__ __forceinline__ void run(int columns, float (&sums)[Tile::kSums]) {
    const int full_stages = columns / kTileColumns;
    if (full_stages > 0) {
      multiply_stage(false, sums);
      // One stage's products are under way while the next one's are started.
      for (int i = 1; i < full_stages; ++i) {
        const int before = at_.stage;
        at_.next();
        multiply_stage(true, sums);
        wait_products<1>(sums);
        release(before);
      }
      wait_products<0>(sums);
      release(at_.stage);
      at_.next();
    }
    const int rest = columns % kTileColumns;
    if (rest > 0) {
      multiply_rest(rest / kProductColumns, full_stages > 0, sums);
      release(at_.stage);
      at_.next();
    }
  }

 private:
  __device__ __forceinline__ uint64_t x_of_stage() const {
    return tile_descriptor(shared_address(shared_.x(at_.stage)) +
                           group_ * kGroupRows * kTileRowBytes);
  }
  __device__ __forceinline__ uint64_t w_of_stage() const {
    return tile_descriptor(shared_address(shared_.w(at_.stage)));
  }

  __device__ __forceinline__ void multiply_stage(bool add, float (&sums)[Tile::kSums]) {
    shared_.filled[at_.stage].wait(at_.round);
    const uint64_t x = x_of_stage(), w = w_of_stage();
    begin_products();
#pragma unroll
    for (int s = 0; s < kTileColumns / kProductColumns; ++s) {
      multiply_async(sums, x + s * kColumnsStep, w + s * kColumnsStep, add || s > 0);
    }
    commit_products();
  }

  // Of a leaf whose length is no multiple of 64. One product after the other: it is rare, and the
  // compiler keeps sums in place only where it can count the products that are under way.
  __device__ __forceinline__ void multiply_rest(int num_products, bool add,
                                                float (&sums)[Tile::kSums]) {
    shared_.filled[at_.stage].wait(at_.round);
    const uint64_t x = x_of_stage(), w = w_of_stage();
#pragma unroll 1
    for (int s = 0; s < num_products; ++s) {
      begin_products();
      multiply_async(sums, x + s * kColumnsStep, w + s * kColumnsStep, add || s > 0);
      commit_products();
      wait_products<0>(sums);
    }
  }

  // Each warp for itself: it knows of its own products only.
  __device__ __forceinline__ void release(int stage) {
    if (threadIdx.x % kWarp == 0) shared_.read[stage].arrive();
  }

  const Shared<Tile>& shared_;
  int group_;
  Ring<Tile::kStages> at_;
};

// The factors of whole leaves' sums: none, one, or one for each output.
template <WeightFormat kFormat, int kSums>
__device__ __forceinline__ void scale_leaf(const ops::LinearWeight& w, int first_out,
                                           float (&sums)[kSums]) {
  if constexpr (kFormat == WeightFormat::kFp8Channel || kFormat == WeightFormat::kInt8Channel) {
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::int64_t out = first_out + 8 * j + 2 * (threadIdx.x % 4) + i;
        const float scale = scale_at(w, min(out, w.out_features - 1), 0);
        sums[4 * j + i] *= scale;
        sums[4 * j + 2 + i] *= scale;
      }
    }
  } else if constexpr (kFormat != WeightFormat::kBf16 && !scales_column_blocks(kFormat)) {
    const float factor =
        WeightRows<kFormat>::kSumFactor * (kFormat == WeightFormat::kMxfp4 ? 1.0f : w.scale_2);
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] *= factor;
  }
}

__device__ __forceinline__ void store_pair(float a, float b, float* y) {
  *reinterpret_cast<float2*>(y) = {a, b};
}
__device__ __forceinline__ void store_pair(float a, float b, bf16* y) {
  *reinterpret_cast<uint32_t*>(y) = to_bf16(a).bits | uint32_t{to_bf16(b).bits} << 16;
}

template <class TY, int kSums>
__device__ __forceinline__ void store_sums(const ops::LinearArgs& a, int first_row, int first_out,
                                           const float (&sums)[kSums]) {
  const int lane = static_cast<int>(threadIdx.x % kWarp);
  const int row_of_group = static_cast<int>(threadIdx.x % kGroupThreads / kWarp) * 16 + lane / 4;
  const bool pairs =
      reinterpret_cast<std::uintptr_t>(a.y) % (2 * sizeof(TY)) == 0 && a.y_stride % 2 == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::int64_t row = first_row + row_of_group + 8 * half;
    if (row >= a.num_rows) continue;
    TY* y = static_cast<TY*>(a.y) + row * a.y_stride;
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      const std::int64_t out = first_out + 8 * j + 2 * (lane % 4);
      const float first = sums[4 * j + 2 * half], second = sums[4 * j + 2 * half + 1];
      if (pairs && out + 1 < a.weight.out_features) {
        store_pair(first, second, y + out);
      } else {
        if (out < a.weight.out_features) store_float(first, y + out);
        if (out + 1 < a.weight.out_features) store_float(second, y + out + 1);
      }
    }
  }
}

template <WeightFormat kFormat, int kOuts>
__device__ __forceinline__ void consume(const ops::LinearArgs& a, const LinearOrder& order,
                                        const Shared<Tile<kFormat, kOuts>>& shared) {
  using T = Tile<kFormat, kOuts>;
  const int thread = static_cast<int>(threadIdx.x) - kGroupThreads;
  const int group = thread / kGroupThreads;
  const Tiles tiles(a, kOuts);
  const auto leaf_columns = static_cast<int>(order.leaf_columns);
  Products<T> products(shared, group);
  WaitingSums<T> tree(shared.waiting + thread);
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles.count;
       tile += static_cast<int>(gridDim.x)) {
    const int first_out = tiles.first_out(tile, kOuts);
    float sums[T::kSums];
    for (int leaf = 0; leaf < order.num_leaves; ++leaf) {
      if constexpr (T::kPromotes) {
#pragma unroll
        for (int i = 0; i < T::kSums; ++i) sums[i] = 0.0f;
        for (int k = 0; k < leaf_columns; k += order.scale_columns) {
          // A tile's outputs share the scale; it is asked for before the products are waited for.
          const float scale = scale_at(a.weight, first_out, leaf * leaf_columns + k);
          float part[T::kSums];
          products.run(min(order.scale_columns, leaf_columns - k), part);
#pragma unroll
          for (int i = 0; i < T::kSums; ++i) sums[i] = fmaf(part[i], scale, sums[i]);
        }
      } else {
        products.run(leaf_columns, sums);
        scale_leaf<kFormat>(a.weight, first_out, sums);
      }
      tree.add(leaf, sums);
    }
    const int first_row = tiles.first_row(tile) + group * kGroupRows;
    if (a.y_dtype == DType::kF32) {
      store_sums<float>(a, first_row, first_out, sums);
    } else {
      store_sums<bf16>(a, first_row, first_out, sums);
    }
  }
}

template <WeightFormat kFormat, int kOuts>
__global__ void __launch_bounds__(kThreads, 1)
    linear_prompt_kernel(const __grid_constant__ CUtensorMap x_map,
                         const __grid_constant__ CUtensorMap w_map, ops::LinearArgs a,
                         LinearOrder order) {
// Other targets hold an empty kernel, which prompt_tiles_serve() keeps from being started.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using T = Tile<kFormat, kOuts>;
  extern __shared__ char memory[];
  const Shared<T> shared(memory);
  if (threadIdx.x == 0) {
    for (int i = 0; i < T::kStages; ++i) {
      shared.filled[i].init(T::kProducers);
      shared.read[i].init(kConsumerThreads / kWarp);
    }
    publish_barriers();
  }
  __syncthreads();
  if (threadIdx.x < kGroupThreads) {
    release_registers<T::kProducerRegisters>();
    if constexpr (kFormat == WeightFormat::kBf16) {
      if (threadIdx.x == 0) produce_copies<T, kOuts>(x_map, w_map, a, order, shared);
    }
  } else {
    claim_registers<T::kConsumerRegisters>();
    consume<kFormat, kOuts>(a, order, shared);
  }
#endif
}

inline CUtensorMap map_of_x(const ops::LinearArgs& a) {
  // A single row may come without a stride.
  return tile_map(a.x, a.num_rows, a.weight.in_features,
                  a.num_rows == 1 ? a.weight.in_features : a.x_stride, kRows, kTileColumns);
}

template <WeightFormat kFormat, int kOuts>
void start(const CudaBackend& backend, const ops::LinearArgs& args, const LinearOrder& order) {
  const CUtensorMap x_map = map_of_x(args);
  // Weights that are decoded are not copied; the map stands for nothing.
  CUtensorMap w_map{};
  if constexpr (kFormat == WeightFormat::kBf16) {
    w_map = tile_map(args.weight.data, args.weight.out_features, args.weight.in_features,
                     args.weight.in_features, kOuts, kTileColumns);
  }
  const std::int64_t tiles =
      divide_up(args.num_rows, kRows) * divide_up(args.weight.out_features, kOuts);
  const auto blocks = std::min<std::int64_t>(tiles, backend.limits().num_processors);
  launch(backend, linear_prompt_kernel<kFormat, kOuts>, dim3(static_cast<unsigned>(blocks)),
         kThreads, Tile<kFormat, kOuts>::kSharedBytes, x_map, w_map, args, order);
}

}  // namespace tandem::cuda::prompt
