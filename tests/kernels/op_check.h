// What the operator tests share: the backend under test, random inputs, arrays between guard bands,
// comparison with a double reference, and the checkers of the two promises that every operator
// makes: a value depends neither on the machine (instruction set, threads) nor on its company in
// the batch. With TANDEM_TEST_BACKEND=cuda in the environment the same tests run on a GPU, in
// memory that both sides see, and are skipped where there is none.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/types.h"
#include "kernels/backend.h"

namespace tandem::testing {

// Largest relative error of one rounding to bf16, with a little slack for the fp32 value under it.
inline constexpr double kBf16Rounding = 0x1.02p-8;
// fp32 sums of products, relative to the sum of the products' magnitudes.
inline constexpr double kFp32Sum = 1e-6;
// fp32 formulas with exp, rsqrt, sin or cos, relative to the magnitudes involved.
inline constexpr double kFp32Formula = 4e-6;

std::vector<float> random_normal(std::uint64_t seed, std::size_t count, float scale = 1.0f);
std::vector<float> random_uniform(std::uint64_t seed, std::size_t count, float low, float high);

// Whether the backend under test is a GPU's. What is found out by looking into device arrays is not
// checked there.
bool on_gpu();

// Memory for host and backend under test.
void* visible_memory(std::size_t bytes);
void release_visible_memory(void* data, std::size_t bytes) noexcept;

template <class T>
struct VisibleAllocator {
  using value_type = T;
  VisibleAllocator() = default;
  template <class U>
  VisibleAllocator(const VisibleAllocator<U>&) {}
  T* allocate(std::size_t n) { return static_cast<T*>(visible_memory(n * sizeof(T))); }
  void deallocate(T* p, std::size_t n) noexcept { release_visible_memory(p, n * sizeof(T)); }
  friend bool operator==(const VisibleAllocator&, const VisibleAllocator&) { return true; }
};

// For everything that an operator gets a pointer to.
template <class T>
using Vector = std::vector<T, VisibleAllocator<T>>;

// `count` elements of F32, BF16 or F8_E4M3 between guard bands; values are seen as floats.
class Array {
 public:
  Array(DType dtype, std::size_t count);  // filled with a pattern that no result equals
  Array(DType dtype, const std::vector<float>& values);

  DType dtype() const { return dtype_; }
  std::size_t size() const { return count_; }
  void* data() { return bytes_.data() + kGuard; }
  const void* data() const { return bytes_.data() + kGuard; }
  void* at(std::size_t i) { return bytes_.data() + kGuard + i * dtype_bytes(dtype_); }
  float* floats() { return static_cast<float*>(data()); }

  float operator[](std::size_t i) const;
  std::vector<float> values() const;  // after rounding to dtype
  std::vector<float> values(std::size_t first, std::size_t count) const;
  void set(std::size_t i, float value);  // rounded to dtype

  // Nothing outside the array was written; for inputs also nothing inside.
  void expect_guards(const char* name) const;
  void expect_unchanged(const char* name) const;

 private:
  static constexpr std::size_t kGuard = 128;
  DType dtype_;
  std::size_t count_;
  Vector<std::byte> bytes_;
  Vector<std::byte> original_;
};

std::unique_ptr<Backend> cpu_backend(int num_threads);
// The backend under test; on a GPU the number of threads means nothing. Operators have finished
// when they return.
std::unique_ptr<Backend> test_backend(int num_threads);

// |actual - expected| <= absolute[i] (+ a bf16 rounding of expected), element by element.
void expect_near(const std::vector<float>& actual, const std::vector<double>& expected,
                 const std::vector<double>& tolerance, DType dtype, const std::string& what);

// "" when bit for bit equal, otherwise where and how they first differ. NaN equals itself.
std::string first_difference(const std::vector<float>& a, const std::vector<float>& b);

// Runs `op` on every instruction set of this machine with 1, 2 and 3 threads, or several times on
// the GPU; "" when all agree.
std::string machine_dependence(const std::function<std::vector<float>(Backend&)>& op);

// Rows of `pool` [., width], one after the other.
std::vector<float> picked_rows(const Array& pool, std::size_t width, const std::vector<int>& rows);

// `op` computes the rows of a pool that are named, in that order, and returns their values one
// after the other. Compares each row alone with the same row in random batches of many sizes; ""
// when a row's value never changes.
std::string batch_dependence(
    int pool, const std::function<std::vector<float>(const std::vector<int>& rows)>& op);

}  // namespace tandem::testing
