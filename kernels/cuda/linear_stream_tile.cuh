// What a warp of linear_stream.cu does with a tile of 16 outputs: operands and scales, sums,
// results.
#pragma once

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_stream_ring.cuh"

namespace tandem::cuda::stream {

// Row g of a tile is its row `spread(g)` in shared memory, g with its bits reversed. Lanes that
// read at once, two rows' of 16 bytes each or four rows' of 8, then touch different banks, because
// the places of their pieces differ where the rows' numbers do.
__device__ __forceinline__ int spread(int g) { return g >> 2 | (g & 2) | (g & 1) << 2; }

// What a lane has of a tile: two weight rows and its columns of x.
template <class S, int kRowTiles>
class Lane {
 public:
  using Weight = typename S::Weight;

  __device__ Lane(const StreamPlan& plan, int tile) : t_(static_cast<int>(threadIdx.x % 4)) {
    const int g = static_cast<int>(threadIdx.x % kWarp / 4);  // see device/mma.cuh
    const int x_row = row_of_x(g);
    first_row_ = tile * kLinearTileOuts + spread(g);
    weight_ = swizzled(first_row_, t_) + first_group() * kGroupBytes;
    // The columns of a lane's 16 bytes of weights are 1, 2 or 4 pieces of x.
    const int piece = t_ * Weight::kGroups + first_group();
    x_ = plan.weight_bytes() + piece / 8 * S::kXTileBytes + swizzled(x_row, piece % 8);
  }

  __device__ int t() const { return t_; }
  __device__ __forceinline__ int first_group() const { return cuda::first_group<Weight>(t_); }
  __device__ int row(int half) const { return first_row_ + 8 * half; }
  // Which row of x column c of a product is.
  static __device__ __forceinline__ int row_of_x(int c) {
    return Weight::kGroups == 1 ? spread(c) : c;
  }

  // Of step 0 or 1 of a chunk, from the lane's first group on.
  __device__ __forceinline__ uint4 weight(const char* chunk, int step, int half) const {
    const int from = weight_ ^ step * (kTileRowBytes / 2);
    chunk += half * 8 * kTileRowBytes;
    if constexpr (Weight::kGroups < 4) return *reinterpret_cast<const uint4*>(chunk + from);
    const uint2 first = *reinterpret_cast<const uint2*>(chunk + from);
    const uint2 second = *reinterpret_cast<const uint2*>(chunk + (from ^ 2 * kGroupBytes));
    return {first.x, first.y, second.x, second.y};
  }
  // Of x, the lane's `group`-th group.
  __device__ __forceinline__ Columns8 x(const char* stage, int step, int group,
                                        int row_tile) const {
    int from = x_ ^ group * 16;
    if constexpr (Weight::kGroups == 1) {
      from ^= step * (kTileRowBytes / 2);
    } else {
      from += step * (S::kXTiles / 2) * S::kXTileBytes;
    }
    const uint4 v =
        *reinterpret_cast<const uint4*>(stage + from + row_tile * kLinearTileRows * kTileRowBytes);
    return {{v.x, v.y, v.z, v.w}};
  }

 private:
  static constexpr int kGroupBytes = 16 / Weight::kGroups;  // of weights

  int t_;
  int first_row_;
  int weight_, x_;  // bytes in a stage
};

// Which output a row of a stage is.
struct OutputRow {
  int linear = 0;
  std::int64_t out = 0;  // some output if the row is none
  bool exists = false;

  __device__ OutputRow(const Link& link, int sweep, int stage_row) {
    const StreamPlan& plan = link.plan;
    while (linear + 1 < link.num_outputs && stage_row >= plan.first_row[linear + 1]) ++linear;
    const int box = plan.box_rows[linear], row = stage_row - plan.first_row[linear];
    const std::int64_t outs = link.outputs[linear].weight.out_features;
    const int block = static_cast<int>(blockIdx.x) - plan.first_block;
    out = (std::int64_t{block} * plan.sweeps + sweep) * box + row;
    exists = row < box && out < outs;
    out = min(out, outs - 1);
  }
};

// The scales of a lane's two weight rows: of a strand if they vary along it, else of all. Of FP4 a
// lane has those that it multiplies with; else lane t has those of the t-th kScaleColumns, and
// lanes look them up with each other.
template <class S, WeightFormat kFormat>
class RowScales {
 public:
  using Weight = typename S::Weight;
  static constexpr int kScales = S::kIsNibble ? 512 / kScaleColumns : 1;
  static_assert(!S::kIsNibble || (S::kStep == kScaleColumns && S::kMaxChunks == 2));
  static_assert(!S::kHasColumnScales || (S::kChunk == kScaleColumns && S::kMaxChunks <= 4));

  // As they are stored: what is asked for a strand ahead must not be waited for to be converted.
  struct OfStrand {
    uint32_t bits[kScales][2] = {};

    // Of FP4: brings the next chunk's to the front, where they are looked up.
    __device__ __forceinline__ void next_chunk() {
      if constexpr (S::kIsNibble) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          bits[0][half] = bits[2][half];
          bits[1][half] = bits[3][half];
        }
      }
    }
  };

  __device__ void set_row(const Link& link, const OutputRow& row, int half) {
    const ops::LinearWeight& w = link.outputs[row.linear].weight;
    if constexpr (S::kIsNibble) {
      scales_[half] = Weight::scale_row(w, row.out);
    } else if constexpr (S::kHasColumnScales) {
      dtype_ = w.scale_dtype;  // one of all linears of a launch
      const auto per_row = static_cast<uint32_t>(divide_up(w.in_features, w.block_cols));
      const uint32_t block = static_cast<uint32_t>(row.out) / static_cast<uint32_t>(w.block_rows);
      scales_[half] = static_cast<const uint8_t*>(w.scales) +
                      std::size_t{block} * per_row * scale_bytes(dtype_);
    }
    if constexpr (!S::kHasColumnScales) factor_[half] = sum_factor<kFormat>(w, row.out);
  }
  __device__ __forceinline__ float factor(int half) const { return factor_[half]; }

  // Asks for them, for lane t of four.
  __device__ __forceinline__ OfStrand load(const Strand& strand, int t) const {
    OfStrand s;
    if constexpr (S::kIsNibble) {
#pragma unroll
      for (int i = 0; i < kScales; ++i) {
        const int column = strand.begin + i * kScaleColumns;
        if (column >= strand.end) break;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          s.bits[i][half] = Weight::scales(scales_[half], column + 8 * Weight::kGroups * t);
        }
      }
    } else if constexpr (S::kHasColumnScales) {
      if (strand.begin >= strand.end) return s;
      // Beyond the end of a shorter strand its last ones will do.
      const int last = strand.end - kScaleColumns;
      const unsigned i =
          static_cast<unsigned>(min(strand.begin + t * kScaleColumns, last)) / kScaleColumns;
#pragma unroll
      for (int half = 0; half < 2; ++half) s.bits[0][half] = load_stored(scales_[half], i);
    }
    return s;
  }

  // Of column scales that have come: as the bits of fp32.
  __device__ __forceinline__ OfStrand converted(OfStrand s) const {
    if constexpr (S::kHasColumnScales) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        s.bits[0][half] = __float_as_uint(scale_value(&s.bits[0][half], dtype_, 0));
      }
    }
    return s;
  }
  // The c-th chunk's of them. All lanes.
  static __device__ __forceinline__ float value(const OfStrand& converted, int c, int half) {
    return __uint_as_float(__shfl_sync(kAllLanes, converted.bits[0][half], c, 4));
  }

 private:
  static __device__ __forceinline__ unsigned scale_bytes(DType dtype) {
    return dtype == DType::kF32 ? 4 : dtype == DType::kBF16 || dtype == DType::kF16 ? 2 : 1;
  }
  __device__ __forceinline__ uint32_t load_stored(const uint8_t* row, unsigned i) const {
    switch (scale_bytes(dtype_)) {
      case 4:
        return __ldg(reinterpret_cast<const uint32_t*>(row) + i);
      case 2:
        return __ldg(reinterpret_cast<const uint16_t*>(row) + i);
      default:
        return __ldg(row + i);
    }
  }

  const uint8_t* scales_[2] = {};
  DType dtype_ = DType::kF32;
  float factor_[2] = {};
};

template <int kRowTiles>
struct TileSums {
  float of[kRowTiles][4] = {};
};

template <class S, int kRowTiles>
__device__ __forceinline__ void multiply_step(const Lane<S, kRowTiles>& lane, const char* chunk,
                                              const char* x_tiles, int step, uint32_t low_scale,
                                              uint32_t high_scale, TileSums<kRowTiles>& sums) {
  using Weight = typename S::Weight;
  const uint4 low = lane.weight(chunk, step, 0), high = lane.weight(chunk, step, 1);
  typename Weight::Factors low_factors{}, high_factors{};
  if constexpr (S::kIsNibble) {
    low_factors = Weight::factors(low_scale, lane.first_group());
    high_factors = Weight::factors(high_scale, lane.first_group());
  }
#pragma unroll
  for (int j = 0; j < Weight::kGroups; ++j) {
    const Columns8 a = Weight::columns(low, low_factors, j);
    const Columns8 b = Weight::columns(high, high_factors, j);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      mma_step(sums.of[r], a, b, lane.x(x_tiles, step, j, r));
    }
  }
}

// A tile's sums in shared memory, each lane its own: those of the leaf that is under way, and of
// subtrees that wait for their sibling.
template <int kRowTiles>
class SumTree {
 public:
  __device__ SumTree(const Ring& ring, const Link& link, int tile)
      : own_(ring.sums + tile * kFloats + static_cast<int>(threadIdx.x % kWarp)),
        level_floats_(link.plan.tiles * kFloats),
        num_leaves_(link.order.num_leaves),
        strands_per_leaf_(link.order.strands_per_leaf) {}

  // A strand's leaf, and its place in that.
  struct Place {
    int leaf, strand;
  };
  __device__ Place place_of(int strand) const {
    const int leaf = strand / strands_per_leaf_;
    return {leaf, strand - leaf * strands_per_leaf_};
  }
  __device__ __forceinline__ void advance(Place& place, int strands) const {
    for (place.strand += strands; place.strand >= strands_per_leaf_; ++place.leaf) {
      place.strand -= strands_per_leaf_;
    }
  }

  // `sums` of a strand; returns whether they have become those of all leaves.
  __device__ __forceinline__ bool add(const Place& place, TileSums<kRowTiles>& sums) const {
    if (place.strand > 0) add_level(0, sums);
    if (place.strand + 1 < strands_per_leaf_) {
      store(0, sums);
      return false;
    }
    int level = 1;
    for (; (place.leaf >> (level - 1) & 1) != 0; ++level) add_level(level, sums);
    if (place.leaf + 1 == num_leaves_) return true;
    store(level, sums);
    return false;
  }

 private:
  static constexpr int kFloats = kRowTiles * 4 * kWarp;

  __device__ __forceinline__ void add_level(int level, TileSums<kRowTiles>& sums) const {
    const float* from = own_ + level * level_floats_;
#pragma unroll
    for (int i = 0; i < kRowTiles * 4; ++i) {
      sums.of[i / 4][i % 4] = from[i * kWarp] + sums.of[i / 4][i % 4];
    }
  }
  __device__ __forceinline__ void store(int level, const TileSums<kRowTiles>& sums) const {
    float* to = own_ + level * level_floats_;
#pragma unroll
    for (int i = 0; i < kRowTiles * 4; ++i) to[i * kWarp] = sums.of[i / 4][i % 4];
  }

  float* own_;
  int level_floats_;
  int num_leaves_, strands_per_leaf_;
};

// Calls function(row tile, i, row of x) for the columns of a lane's sums that are rows of x.
template <class S, int kRowTiles, class Function>
__device__ __forceinline__ void for_rows(int num_rows, const Lane<S, kRowTiles>& lane,
                                         const Function& function) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int x_row = r * kLinearTileRows + lane.row_of_x(2 * lane.t() + i);
      if (x_row < num_rows) function(r, i, x_row);
    }
  }
}

// `factors`: of the rows of x, in shared memory; or nullptr. `fold`: the norm that the outputs are
// folded into the residual stream for; or nullptr.
template <class S, int kRowTiles>
__device__ __forceinline__ void write_tile(const Link& link, int num_rows,
                                           const Lane<S, kRowTiles>& lane, int sweep,
                                           const TileSums<kRowTiles>& sums, const float* factors,
                                           const ops::ResidualRmsNormArgs* fold) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const OutputRow row(link, sweep, lane.row(half));
    if (!row.exists) continue;
    const Output& output = link.outputs[row.linear];
    float more[kRowTiles][2] = {};  // of the residual stream
    float weight = 0;
    const bool adds = fold != nullptr && fold->update == ops::ResidualUpdate::kAdd;
    if (fold != nullptr) {
      weight = 1.0f + __ldg(fold->weight + row.out);
      for_rows(num_rows, lane, [&](int r, int i, int x_row) {
        // Past the first-level cache: other blocks may have written them in this kernel.
        if (adds)
          more[r][i] = load_past_l1(static_cast<const bf16*>(fold->residual) +
                                    std::int64_t{x_row} * fold->width + row.out);
      });
    }
    for_rows(num_rows, lane, [&](int r, int i, int x_row) {
      const float sum = sums.of[r][2 * half + i] * factor_of(factors, x_row);
      const std::int64_t at = x_row * output.y_stride + row.out;
      if (output.y_dtype == DType::kF32) {
        static_cast<float*>(output.y)[at] = sum;
      } else {
        store_float(sum, static_cast<bf16*>(output.y) + at);
      }
      if (fold == nullptr) return;
      const std::int64_t to = std::int64_t{x_row} * fold->width + row.out;
      const float folded = rounded_to<bf16>(adds ? more[r][i] + sum : sum);
      store_float(folded, static_cast<bf16*>(fold->residual) + to);
      store_float(folded * weight, static_cast<bf16*>(fold->y) + to);
    });
  }
}

}  // namespace tandem::cuda::stream
