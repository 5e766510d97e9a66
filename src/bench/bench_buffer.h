// Memory of a backend for the time of a benchmark.
#pragma once

#include <cstddef>

#include "kernels/backend.h"

namespace tandem {

class BenchBuffer {
 public:
  BenchBuffer(Backend& backend, std::size_t bytes)
      : backend_(backend), bytes_(bytes), data_(backend.allocate(bytes)) {}
  ~BenchBuffer() { backend_.deallocate(data_, bytes_); }
  BenchBuffer(const BenchBuffer&) = delete;
  BenchBuffer& operator=(const BenchBuffer&) = delete;

  template <class T = void>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::byte* at(std::size_t offset) const { return static_cast<std::byte*>(data_) + offset; }
  std::size_t bytes() const { return bytes_; }

 private:
  Backend& backend_;
  std::size_t bytes_;
  void* data_;
};

}  // namespace tandem
