// Maps of matrices for the copy engine, which fetches boxes of them into shared memory. A map is a
// value: a kernel's parameter, and so part of a captured graph.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace tandem::cuda {

// Of a matrix [rows, columns] of bf16 whose rows lie `stride` elements apart: data and rows on
// multiples of 16 bytes. Boxes of box_rows x box_columns (of 128 bytes) are swizzled as
// device/copy_engine.cuh says; what they reach beyond the matrix is zero.
CUtensorMap tile_map(const void* data, std::int64_t rows, std::int64_t columns, std::int64_t stride,
                     int box_rows, int box_columns);

// Of the same matrix, cut into columns of 64, each a tile: boxes of the first box_rows rows of
// box_tiles neighbours, one tile after the other. `columns` is a multiple of 64.
CUtensorMap tiles_map(const void* data, std::int64_t rows, std::int64_t columns,
                      std::int64_t stride, int box_rows, int box_tiles);

}  // namespace tandem::cuda
