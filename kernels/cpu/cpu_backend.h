// The CPU as a Backend: pages from the kernel, OpenMP threads, Highway's choice of instructions,
// and the scratch memory that kernels use inside a step. Operators themselves are in cpu/<op>.cpp.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "base/clock.h"
#include "kernels/backend.h"

namespace tandem::cpu {

// Scratch of one thread; each kernel asserts at compile time that its arrays fit.
inline constexpr std::size_t kThreadScratchBytes = std::size_t{1} << 20;
// Scratch that the threads share, for partial results of one operator call.
inline constexpr std::size_t kSharedScratchBytes = std::size_t{8} << 20;

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const BackendOptions& options);
  ~CpuBackend() override;
  CpuBackend(const CpuBackend&) = delete;
  CpuBackend& operator=(const CpuBackend&) = delete;

  BackendKind kind() const override { return BackendKind::kCpu; }
  std::string description() const override;
  int num_threads() const override { return num_threads_; }

  using Backend::allocate;
  using Backend::deallocate;
  void* allocate(std::size_t bytes, MemoryKind kind) override;
  void deallocate(void* data, std::size_t bytes, MemoryKind kind) noexcept override;

  void copy(void* destination, const void* source, std::size_t bytes) override;
  void zero(void* destination, std::size_t bytes) override;
  void synchronize() override {}
  void mark(int i) override { marks_s_.at(static_cast<std::size_t>(i)) = monotonic_s(); }
  double seconds_between(int begin, int end) override {
    return marks_s_.at(static_cast<std::size_t>(end)) -
           marks_s_.at(static_cast<std::size_t>(begin));
  }
  void wait_for_mark(int) override {}

  // kThreadScratchBytes for thread 0 <= thread < num_threads(), 256-byte aligned.
  std::byte* thread_scratch(int thread) const {
    return scratch_ + kSharedScratchBytes + static_cast<std::size_t>(thread) * kThreadScratchBytes;
  }
  std::byte* shared_scratch() const { return scratch_; }

 private:
  std::size_t scratch_bytes() const;

  int num_threads_ = 1;
  std::array<double, kNumMarks> marks_s_{};
  std::byte* scratch_ = nullptr;  // shared scratch, then one block a thread
};

}  // namespace tandem::cpu
