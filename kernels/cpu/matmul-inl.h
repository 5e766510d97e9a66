// C += A B for small fp32 A and row-major B, vectorized over B's columns: attention's weighted sum
// of values and the delta rule's products with its state.
//
// Order of summation: every element of C adds its terms one by one in ascending inner index, by
// fused multiply-add, starting from what C holds. Tiles differ in what they share, never in this
// order; an element depends on its own row of A, its own column of B, and the inner length.
#if defined(TANDEM_KERNELS_CPU_MATMUL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_KERNELS_CPU_MATMUL_INL_H_
#undef TANDEM_KERNELS_CPU_MATMUL_INL_H_
#else
#define TANDEM_KERNELS_CPU_MATMUL_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu {
namespace HWY_NAMESPACE {

// Tile sizes by the number of registers, as in dot-inl.h.
inline constexpr int kMatRows = kParts == 1 ? 4 : 2;
inline constexpr int kMatVecs = kParts == 1 ? 4 : 2;
inline constexpr int kMatVecsOfOneRow = 2 * kMatVecs;

// A[r][k] = data[r * row_stride + k * inner_stride]
struct MatrixA {
  const float* data = nullptr;
  std::int64_t row_stride = 0;
  std::int64_t inner_stride = 1;
};

// Rows of B at a fixed distance, or anywhere.
template <class T>
struct StridedRows {
  const T* base = nullptr;
  std::int64_t stride = 0;
  HWY_INLINE const T* row(int k) const { return base + k * stride; }
};
template <class T>
struct GatheredRows {
  const T* base = nullptr;
  const std::int64_t* offsets = nullptr;
  HWY_INLINE const T* row(int k) const { return base + offsets[k]; }
};

template <int kRows, int kVecs, class Rows>
HWY_INLINE void matmul_tile(const MatrixA& a, const Rows& b, int column, int inner, float* c,
                            std::int64_t c_stride) {
  F32x16 acc[kRows][kVecs];
  TANDEM_UNROLL for (int r = 0; r < kRows; ++r) {
    TANDEM_UNROLL for (int v = 0; v < kVecs; ++v) {
      acc[r][v] = load16(c + r * c_stride + v * kLanes);
    }
  }
  for (int k = 0; k < inner; ++k) {
    const auto* row = b.row(k) + column;
    F32x16 bs[kVecs];
    TANDEM_UNROLL for (int v = 0; v < kVecs; ++v) bs[v] = load16(row + v * kLanes);
    TANDEM_UNROLL for (int r = 0; r < kRows; ++r) {
      const F32x16 as = set16(a.data[r * a.row_stride + k * a.inner_stride]);
      TANDEM_UNROLL for (int v = 0; v < kVecs; ++v) acc[r][v] = fma16(as, bs[v], acc[r][v]);
    }
  }
  TANDEM_UNROLL for (int r = 0; r < kRows; ++r) {
    TANDEM_UNROLL for (int v = 0; v < kVecs; ++v) {
      store16(acc[r][v], c + r * c_stride + v * kLanes);
    }
  }
}

template <int kRows, int kVecs, class Rows>
HWY_INLINE void matmul_rows(int r, const MatrixA& a, const Rows& b, int column, int inner, float* c,
                            std::int64_t c_stride) {
  matmul_tile<kRows, kVecs>({a.data + r * a.row_stride, a.row_stride, a.inner_stride}, b, column,
                            inner, c + r * c_stride + column, c_stride);
}

template <int kVecs, int kVecsOfOneRow, class Rows>
HWY_INLINE void matmul_columns(const MatrixA& a, const Rows& b, int& column, int columns, int rows,
                               int inner, float* c, std::int64_t c_stride) {
  if (rows == 1) {
    for (; column + kVecsOfOneRow * kLanes <= columns; column += kVecsOfOneRow * kLanes) {
      matmul_rows<1, kVecsOfOneRow>(0, a, b, column, inner, c, c_stride);
    }
  }
  for (; column + kVecs * kLanes <= columns; column += kVecs * kLanes) {
    int r = 0;
    for (; r + kMatRows <= rows; r += kMatRows) {
      matmul_rows<kMatRows, kVecs>(r, a, b, column, inner, c, c_stride);
    }
    if constexpr (kMatRows > 2) {
      for (; r + 2 <= rows; r += 2) matmul_rows<2, kVecs>(r, a, b, column, inner, c, c_stride);
    }
    for (; r < rows; ++r) matmul_rows<1, kVecs>(r, a, b, column, inner, c, c_stride);
  }
}

// C[rows][columns] += A[rows][inner] B[inner][columns]; columns is a multiple of 16.
template <class Rows>
void matmul(const MatrixA& a, const Rows& b, int rows, int columns, int inner, float* c,
            std::int64_t c_stride) {
  int column = 0;
  matmul_columns<kMatVecs, kMatVecsOfOneRow>(a, b, column, columns, rows, inner, c, c_stride);
  matmul_columns<1, 1>(a, b, column, columns, rows, inner, c, c_stride);
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard, per target
