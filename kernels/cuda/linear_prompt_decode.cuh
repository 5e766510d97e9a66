// The producers of linear_prompt.cuh for quantized weights: a warpgroup loads codes and stores
// bf16.
#pragma once

#include <type_traits>

#include "kernels/cuda/device/weights.cuh"
#include "kernels/cuda/linear_prompt_tile.cuh"

namespace tandem::cuda::prompt {

// A thread's 16-byte loads of codes, and their way into a stage as bf16.
template <WeightFormat kFormat, int kOuts>
class Decoder {
 public:
  __device__ explicit Decoder(const ops::LinearWeight& weight) : weight_(weight) {}

  // A thread's loads for a stage.
  static constexpr int kLoadColumns = 8 * WeightRows<kFormat>::kGroups;
  static constexpr int kLoadsOfRow = kTileColumns / kLoadColumns;
  static constexpr int kLoads = kOuts * kLoadsOfRow / kGroupThreads;

  __device__ __forceinline__ void load(const Blocks<kOuts>& block, int i) {
    const int column = block.begin + load_of_row() * kLoadColumns;
    if (column >= block.leaf_end) return;  // a piece of the stage that is not multiplied
    const std::int64_t out =
        min(std::int64_t{block.first_out() + row_of(i)}, weight_.out_features - 1);
    const std::uint8_t* row = Weight::row(weight_, out);
    raw_[i] = __ldg(reinterpret_cast<const uint4*>(Weight::address(row, column)));
    // Loads one stage ahead cover the way from L2, not that from memory.
    if (load_of_row() == 0 && column + kPrefetchColumns < weight_.in_features) {
      asm volatile(
          "prefetch.global.L2 [%0];" ::"l"(Weight::address(row, column + kPrefetchColumns)));
    }
    if constexpr (kHasScales) {
      scales_[i] = Weight::scales(Weight::scale_row(weight_, out), column);
    }
  }

  __device__ __forceinline__ void store(char* tile, int i) const {
    const auto factors = Weight::factors(scales_[i], 0);
#pragma unroll
    for (int j = 0; j < Weight::kGroups; ++j) {
      const Columns8 c = Weight::columns(raw_[i], factors, j);
      *reinterpret_cast<uint4*>(tile + swizzled(row_of(i), load_of_row() * Weight::kGroups + j)) = {
          c.pair[0], c.pair[1], c.pair[2], c.pair[3]};
    }
  }

 private:
  using Weight = WeightRows<kFormat>;
  static constexpr int kPrefetchColumns = 8 * kTileColumns;
  static constexpr bool kHasScales = !std::is_same_v<typename Weight::Scales, NoScales>;

  __device__ static int load_of_row() { return static_cast<int>(threadIdx.x) % kLoadsOfRow; }
  __device__ static int row_of(int i) {
    return static_cast<int>(threadIdx.x) / kLoadsOfRow + i * (kGroupThreads / kLoadsOfRow);
  }

  const ops::LinearWeight& weight_;
  uint4 raw_[kLoads] = {};
  typename Weight::Scales scales_[kLoads] = {};
};

// The scale that this thread brings to a stage whose columns `block` begins with.
template <class Tile, int kOuts>
__device__ __forceinline__ float stage_scale(const ops::LinearWeight& w,
                                             const Blocks<kOuts>& block) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int column = block.begin + thread / kOuts * Tile::kScaledColumns;
  if (column >= block.leaf_end) return 0.0f;  // of columns that are not multiplied
  const int out = min(block.first_out() + thread % kOuts, static_cast<int>(w.out_features) - 1);
  return scale_value(w.scales, w.scale_dtype, first_scale(w, out, column));
}

// Copies of x by one thread, and a weight that all of the warpgroup decode. The next stage's codes
// are loaded while this one's are decoded.
template <WeightFormat kFormat, int kOuts>
__device__ __forceinline__ void produce_decoded(const CUtensorMap& x_map, const ops::LinearArgs& a,
                                                const LinearOrder& order,
                                                const Shared<Tile<kFormat, kOuts>>& shared) {
  using T = Tile<kFormat, kOuts>;
  using D = Decoder<kFormat, kOuts>;
  D decoder(a.weight);
  Ring<T::kStages> at;
  Blocks<kOuts> block(a, order), next = block;
  if (block.done()) return;
#pragma unroll
  for (int i = 0; i < D::kLoads; ++i) decoder.load(block, i);
  float scale = 0.0f;
  if constexpr (T::kHasStageScales) scale = stage_scale<T>(a.weight, block);
  for (; !block.done(); block = next, at.next()) {
    next.next();
    shared.read[at.stage].wait(at.round ^ 1);
    Barrier& filled = shared.filled[at.stage];
    if (threadIdx.x == 0) {
      filled.arrive_and_expect(T::kXBytes);
      copy_tile(x_map, block.begin, block.first_row(), shared.x(at.stage), filled);
    }
    const bool more = !next.done();
#pragma unroll
    for (int i = 0; i < D::kLoads; ++i) {
      decoder.store(shared.w(at.stage), i);
      if (more) decoder.load(next, i);
    }
    if constexpr (T::kHasStageScales) shared.scales_of(at.stage)[threadIdx.x] = scale;
    publish_stores();
    filled.arrive();
    // To convert it is to wait for it: better where the next stage is waited for.
    if constexpr (T::kHasStageScales) {
      if (more) scale = stage_scale<T>(a.weight, next);
    }
  }
}

}  // namespace tandem::cuda::prompt
