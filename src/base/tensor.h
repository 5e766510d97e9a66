// A non-owning view of a row-major array, and nothing more: arenas own, operators look.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "base/error.h"
#include "base/types.h"

namespace tandem {

// Up to four dimensions, contiguous. An empty view (data == nullptr, rank 0) means "absent".
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<std::int64_t, 4> shape{1, 1, 1, 1};

  TensorView() = default;
  TensorView(void* d, DType t, std::initializer_list<std::int64_t> dims) : data(d), dtype(t) {
    TANDEM_CHECK(dims.size() <= 4);
    for (const auto n : dims) shape[static_cast<std::size_t>(rank++)] = n;
  }

  bool empty() const { return data == nullptr; }
  std::int64_t numel() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
  std::int64_t bytes() const { return numel() * static_cast<std::int64_t>(dtype_bytes(dtype)); }
  std::int64_t dim(int i) const { return shape[static_cast<std::size_t>(i)]; }

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }

  // The first n rows (n <= dim(0)).
  TensorView first_rows(std::int64_t n) const {
    TANDEM_CHECK(n <= shape[0], "{} of {} rows", n, shape[0]);
    TensorView v = *this;
    v.shape[0] = n;
    return v;
  }
};

}  // namespace tandem
