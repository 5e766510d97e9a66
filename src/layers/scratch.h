// Activations of a forward pass: a bump allocator over one arena, rewound between layers. The same
// layout code runs once over a null arena to find the largest extent, which sizes the arena, and
// then in every step, so there is one formula for both.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "base/types.h"
#include "memory/part_allocator.h"

namespace tandem {

class Scratch {
 public:
  Scratch() = default;  // measures only: hands out nullptr
  Scratch(void* base, std::size_t capacity)
      : base_(static_cast<std::byte*>(base)), capacity_(capacity) {}

  template <typename T>
  T* take(std::int64_t count) {
    return static_cast<T*>(take_bytes(static_cast<std::size_t>(count) * sizeof(T)));
  }
  // `count` elements of a type known at run time.
  void* take(DType dtype, std::int64_t count) {
    return take_bytes(static_cast<std::size_t>(count) * dtype_bytes(dtype));
  }
  void* take_bytes(std::size_t bytes) {
    const std::size_t begin = used_;
    used_ += align_up(bytes);
    peak_ = std::max(peak_, used_);
    if (base_ == nullptr) return nullptr;
    TANDEM_CHECK(used_ <= capacity_, "activations: {} of {} bytes", used_, capacity_);
    return base_ + begin;
  }

  // True in a planning pass: layers lay out their buffers and return.
  bool measuring() const { return base_ == nullptr; }
  std::size_t peak() const { return peak_; }

  // Gives back what was taken inside a scope.
  class Mark {
   public:
    explicit Mark(Scratch& scratch) : scratch_(scratch), used_(scratch.used_) {}
    ~Mark() { scratch_.used_ = used_; }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;

   private:
    Scratch& scratch_;
    std::size_t used_;
  };

 private:
  std::byte* base_ = nullptr;
  std::size_t capacity_ = 0;
  std::size_t used_ = 0;
  std::size_t peak_ = 0;
};

}  // namespace tandem
