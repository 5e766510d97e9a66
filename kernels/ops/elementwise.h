// Small row-wise operators.
#pragma once

#include <cstdint>

#include "base/types.h"
#include "kernels/backend.h"

namespace tandem::ops {

// y = SiLU(gate) * up, fp32 inside, one rounding.
struct SiluMulArgs {
  const void* gate = nullptr;  // [num_rows, width]
  const void* up = nullptr;    // [num_rows, width]
  DType dtype = DType::kBF16;
  int num_rows = 0;
  int width = 0;
  void* y = nullptr;  // [num_rows, width]; may alias gate or up
};
void silu_mul(Backend& backend, const SiluMulArgs& args);

// y[i] = x[rows[i]]: picks rows, e.g. those that go through the head.
struct GatherRowsArgs {
  const void* x = nullptr;             // [any, row_bytes]
  const std::int32_t* rows = nullptr;  // [num_rows]
  int num_rows = 0;
  std::int64_t row_bytes = 0;
  std::int64_t y_stride_bytes = 0;  // >= row_bytes
  void* y = nullptr;                // must not alias x
};
void gather_rows(Backend& backend, const GatherRowsArgs& args);

// y[rows[i]] = x[i]: the inverse; the rows must be distinct.
struct ScatterRowsArgs {
  const void* x = nullptr;
  const std::int32_t* rows = nullptr;  // [num_rows]
  int num_rows = 0;
  std::int64_t row_bytes = 0;
  void* y = nullptr;
};
void scatter_rows(Backend& backend, const ScatterRowsArgs& args);

// y = round(x), F32 to BF16, or a copy when y is F32. NaN stays NaN; its payload is the backend's.
struct CastArgs {
  const float* x = nullptr;  // [count]
  std::int64_t count = 0;
  void* y = nullptr;
  DType y_dtype = DType::kBF16;
};
void cast(Backend& backend, const CastArgs& args);

// y += x.
struct AddArgs {
  const float* x = nullptr;  // [count]
  std::int64_t count = 0;
  float* y = nullptr;  // [count]; must not alias x
};
void add(Backend& backend, const AddArgs& args);

}  // namespace tandem::ops
