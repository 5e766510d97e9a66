// The kernel behind linear_prompt.h. A block stays on its processor and takes one tile of 128 rows
// and kOuts outputs after the other. Its first warpgroup fills a ring of stages, 64 columns of x
// and of the weight each, with the scales of their groups where every output has its own; two more
// multiply, 64 rows each. Stages are handed over through barriers, so the next tile's columns
// arrive while the last one's sums are written.
#pragma once

#include <algorithm>

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/device/weights.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_prompt_tile.cuh"
#include "kernels/cuda/tensor_map.h"

namespace tandem::cuda::prompt {

// Copies of x, and of a weight that is bf16 already. One thread.
template <class Tile, int kOuts>
__device__ __forceinline__ void produce_copies(const CUtensorMap& x_map, const CUtensorMap& w_map,
                                               const ops::LinearArgs& a, const LinearOrder& order,
                                               const Shared<Tile>& shared) {
  prefetch_map(x_map);
  prefetch_map(w_map);
  Ring<Tile::kStages> at;
  for (Blocks<kOuts> b(a, order); !b.done(); b.next(), at.next()) {
    shared.read[at.stage].wait(at.round ^ 1);
    Barrier& filled = shared.filled[at.stage];
    filled.arrive_and_expect(Tile::kStageBytes);
    copy_tile(x_map, b.begin, b.first_row(), shared.x(at.stage), filled);
    copy_tile(w_map, b.begin, b.first_out(), shared.w(at.stage), filled);
  }
}

// The same for other formats: linear_prompt_decode.cuh.
template <WeightFormat kFormat, int kOuts>
__device__ __forceinline__ void produce_decoded(const CUtensorMap& x_map, const ops::LinearArgs& a,
                                                const LinearOrder& order,
                                                const Shared<Tile<kFormat, kOuts>>& shared);

// Adds leaves as a tree while they arrive, like LeafTree, for more sums than registers hold.
template <class Tile>
class WaitingSums {
 public:
  __device__ explicit WaitingSums(float* of_thread) : shared_(of_thread) {}

  // `sums` becomes the root of the largest subtree that ends with this leaf.
  __device__ __forceinline__ void add(int leaf, float (&sums)[Tile::kSums]) {
    // Of a level: its sum is added if the leaf ends its right half, replaced if it ends its left.
    const auto ends_right = [leaf](int level) { return ((leaf + 1) & ((2 << level) - 1)) == 0; };
    const auto ends_left = [leaf](int level) {
      return ((leaf + 1) & ((2 << level) - 1)) == 1 << level;
    };
#pragma unroll
    for (int level = 0; level < Tile::kRegisterLevels; ++level) {
      const int right = ends_right(level), left = ends_left(level);
#pragma unroll
      for (int i = 0; i < Tile::kSums; ++i) {
        // Without branches, after which the compiler would keep copies of all these registers.
        asm("{\n.reg .pred right, left;\n"
            "setp.ne.b32 right, %2, 0;\n"
            "setp.ne.b32 left, %3, 0;\n"
            "@right add.rn.f32 %0, %1, %0;\n"
            "@left mov.f32 %1, %0;\n}"
            : "+f"(sums[i]), "+f"(registers_[level][i])
            : "r"(right), "r"(left));
      }
    }
#pragma unroll
    for (int level = Tile::kRegisterLevels; level < Tile::kLevels; ++level) {
      float* waiting = shared_ + (level - Tile::kRegisterLevels) * Tile::kSums * kConsumerThreads;
      if (ends_right(level)) {
#pragma unroll
        for (int i = 0; i < Tile::kSums; ++i) sums[i] = waiting[i * kConsumerThreads] + sums[i];
      }
      if (ends_left(level)) {
#pragma unroll
        for (int i = 0; i < Tile::kSums; ++i) waiting[i * kConsumerThreads] = sums[i];
      }
    }
  }

 private:
  float registers_[Tile::kRegisterLevels > 0 ? Tile::kRegisterLevels : 1][Tile::kSums] = {};
  float* shared_;
};

// A consumer warpgroup's side of the ring.
template <class Tile>
class Products {
 public:
  __device__ Products(const Shared<Tile>& shared, int group) : shared_(shared), group_(group) {}

  // sums = the products of `columns` columns, a multiple of 16, from the next stages. The last one
  // stays until finish_stage().
  __device__ __forceinline__ void run(int columns, float (&sums)[Tile::kSums]) {
    const int full_stages = columns / kTileColumns, rest = columns % kTileColumns;
    if (full_stages > 0) {
      multiply_stage<kStageProducts>(0, false, sums);
      // One stage's products are under way while the next one's are started.
      for (int i = 1; i < full_stages; ++i) {
        const int before = at_.stage;
        at_.next();
        multiply_stage<kStageProducts>(0, true, sums);
        wait_products<1>(sums);
        release(before);
      }
      wait_products<0>(sums);
      if (rest > 0) finish_stage();
    }
    if (rest > 0) multiply_rest(0, rest / kProductColumns, full_stages > 0, sums);
  }

  // sums = the products of columns first .. first + columns - 1 of the next stage, at most half of
  // it, which stays until finish_stage().
  __device__ __forceinline__ void run_half(int first, int columns, float (&sums)[Tile::kSums]) {
    constexpr int kProducts = kTileColumns / 2 / kProductColumns;
    if (columns < kProducts * kProductColumns) {
      return multiply_rest(first / kProductColumns, columns / kProductColumns, false, sums);
    }
    multiply_stage<kProducts>(first / kProductColumns, false, sums);
    wait_products<0>(sums);
  }

  // The scales over column `first` of the last stage, from this thread's first pair of outputs on.
  __device__ __forceinline__ const float2* scales(int first) const {
    return reinterpret_cast<const float2*>(shared_.scales_of(at_.stage) +
                                           first * kGroupThreads / kTileColumns) +
           threadIdx.x % 4;
  }

  __device__ __forceinline__ void finish_stage() {
    if constexpr (Tile::kHasStageScales) __syncwarp();  // all lanes have read them
    release(at_.stage);
    at_.next();
  }

 private:
  static constexpr int kStageProducts = kTileColumns / kProductColumns;

  __device__ __forceinline__ uint64_t x_of_stage() const {
    return tile_descriptor(shared_address(shared_.x(at_.stage)) +
                           group_ * kGroupRows * kTileRowBytes);
  }
  __device__ __forceinline__ uint64_t w_of_stage() const {
    return tile_descriptor(shared_address(shared_.w(at_.stage)));
  }

  template <int kProducts>
  __device__ __forceinline__ void multiply_stage(int first, bool add, float (&sums)[Tile::kSums]) {
    shared_.filled[at_.stage].wait(at_.round);
    const uint64_t x = x_of_stage() + first * kColumnsStep;
    const uint64_t w = w_of_stage() + first * kColumnsStep;
    begin_products();
#pragma unroll
    for (int s = 0; s < kProducts; ++s) {
      multiply_async(sums, x + s * kColumnsStep, w + s * kColumnsStep, add || s > 0);
    }
    commit_products();
  }

  // Of a leaf whose length is no multiple of 64, or of 32 where groups are that short. One product
  // after the other: it is rare, and the compiler keeps sums in place only where it can count the
  // products that are under way.
  __device__ __forceinline__ void multiply_rest(int first, int num_products, bool add,
                                                float (&sums)[Tile::kSums]) {
    shared_.filled[at_.stage].wait(at_.round);
    const uint64_t x = x_of_stage() + first * kColumnsStep;
    const uint64_t w = w_of_stage() + first * kColumnsStep;
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
    int first = first_out + 2 * static_cast<int>(threadIdx.x % 4);
    // Unknown to the compiler, which would keep all scales in registers from leaf to leaf.
    asm volatile("" : "+r"(first));
#pragma unroll
    for (int i = 0; i < kSums / 2; ++i) {
      const std::int64_t out = min(std::int64_t{first + i / 2 * 8 + i % 2}, w.out_features - 1);
      const float scale = scale_value(w.scales, w.scale_dtype, out);
      sums[i / 2 * 4 + i % 2] *= scale;
      sums[i / 2 * 4 + i % 2 + 2] *= scale;
    }
  } else if constexpr (kFormat != WeightFormat::kBf16 && !has_column_scales(kFormat)) {
    const float factor =
        WeightRows<kFormat>::kSumFactor * (kFormat == WeightFormat::kMxfp4 ? 1.0f : w.scale_2);
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] *= factor;
  }
}

// sums += part * scales, which lie in pairs, four of them for every eight outputs.
template <int kSums>
__device__ __forceinline__ void add_scaled(const float2* scales, const float (&part)[kSums],
                                           float (&sums)[kSums]) {
#pragma unroll
  for (int j = 0; j < kSums / 4; ++j) {
    const float2 scale = scales[4 * j];
#pragma unroll
    for (int i = 4 * j; i < 4 * j + 4; i += 2) {
      sums[i] = fmaf(part[i], scale.x, sums[i]);
      sums[i + 1] = fmaf(part[i + 1], scale.y, sums[i + 1]);
    }
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
    const float factor = factor_of(a.row_factors, row);
#pragma unroll
    for (int j = 0; j < kSums / 4; ++j) {
      const std::int64_t out = first_out + 8 * j + 2 * (lane % 4);
      const float first = sums[4 * j + 2 * half] * factor;
      const float second = sums[4 * j + 2 * half + 1] * factor;
      if (pairs && out + 1 < a.weight.out_features) {
        store_pair(first, second, y + out);
      } else {
        if (out < a.weight.out_features) store_float(first, y + out);
        if (out + 1 < a.weight.out_features) store_float(second, y + out + 1);
      }
    }
  }
}

// sums = a leaf's, whose groups of columns have a scale of each output.
template <class Tile>
__device__ __forceinline__ void sum_groups(const LinearOrder& order, Products<Tile>& products,
                                           float (&sums)[Tile::kSums]) {
  const auto leaf_columns = static_cast<int>(order.leaf_columns);
#pragma unroll
  for (int i = 0; i < Tile::kSums; ++i) sums[i] = 0.0f;
  for (int k = 0; k < leaf_columns; k += order.scale_columns) {
    const int columns = min(order.scale_columns, leaf_columns - k);
    float part[Tile::kSums];
    if (Tile::kScaledColumns == kTileColumns || order.scale_columns % kTileColumns == 0) {
      products.run(columns, part);
      add_scaled(products.scales(0), part, sums);
      products.finish_stage();
    } else {
      const int first = k % kTileColumns;
      products.run_half(first, columns, part);
      add_scaled(products.scales(first), part, sums);
      if (first > 0 || k + columns == leaf_columns) products.finish_stage();
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
      if constexpr (T::kHasStageScales) {
        sum_groups(order, products, sums);
      } else if constexpr (T::kPromotes) {
#pragma unroll
        for (int i = 0; i < T::kSums; ++i) sums[i] = 0.0f;
        // A tile's outputs share their scales.
        std::int64_t scale_index = first_scale(a.weight, first_out, leaf * leaf_columns);
        for (int k = 0; k < leaf_columns; k += order.scale_columns, ++scale_index) {
          // Asked for before the products are waited for.
          const float scale = scale_value(a.weight.scales, a.weight.scale_dtype, scale_index);
          float part[T::kSums];
          products.run(min(order.scale_columns, leaf_columns - k), part);
          products.finish_stage();
#pragma unroll
          for (int i = 0; i < T::kSums; ++i) sums[i] = fmaf(part[i], scale, sums[i]);
        }
      } else {
        products.run(leaf_columns, sums);
        products.finish_stage();
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
    } else {
      produce_decoded<kFormat, kOuts>(x_map, a, order, shared);
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
