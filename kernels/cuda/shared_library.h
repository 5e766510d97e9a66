// A library that is opened when it is wanted, because it may be missing: NVML comes with the
// driver, cuBLASLt (half a gigabyte) serves a measurement alone.
#pragma once

#include <string>

namespace tandem::cuda {

class SharedLibrary {
 public:
  // Never throws; see error().
  explicit SharedLibrary(const char* name);
  ~SharedLibrary();
  SharedLibrary(const SharedLibrary&) = delete;
  SharedLibrary& operator=(const SharedLibrary&) = delete;

  // The function, or nullptr, and then error() says so. Function: its pointer type.
  template <class Function>
  Function find(const char* name) {
    return reinterpret_cast<Function>(find_symbol(name));
  }
  // The first thing that was missing; empty while nothing is.
  const std::string& error() const { return error_; }

 private:
  void* find_symbol(const char* name);

  void* handle_ = nullptr;
  std::string error_;
};

}  // namespace tandem::cuda
