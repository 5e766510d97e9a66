#include "tests/kernels/op_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>
#include <numeric>
#include <random>
#include <string_view>

#include "base/error.h"
#include "kernels/cpu/target.h"

namespace tandem::testing {
namespace {

// Before the first test: skips all of them where there is no GPU to run them on.
class GpuEnvironment : public ::testing::Environment {
 public:
  void SetUp() override {
    if (!on_gpu()) return;
    // Operators return when they are done, so that the tests can read results at once.
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    if (default_backend() != BackendKind::kCuda) GTEST_SKIP() << "no CUDA device";
  }
};

const ::testing::Environment* const kGpuEnvironment =
    ::testing::AddGlobalTestEnvironment(new GpuEnvironment);

// Blocks of host-visible GPU memory by size, kept for the next array of that size: tests make
// thousands, and the driver is slow at making them. Never destroyed.
class VisiblePool {
 public:
  void* take(std::size_t bytes) {
    auto& blocks = free_[std::bit_ceil(bytes)];
    if (blocks.empty()) return backend_->allocate(std::bit_ceil(bytes), MemoryKind::kHostVisible);
    void* data = blocks.back();
    blocks.pop_back();
    return data;
  }
  void give(void* data, std::size_t bytes) { free_[std::bit_ceil(bytes)].push_back(data); }

 private:
  std::unique_ptr<Backend> backend_ = make_backend(BackendKind::kCuda, {});
  std::map<std::size_t, std::vector<void*>> free_;
};

VisiblePool& visible_pool() {
  static auto* pool = new VisiblePool;
  return *pool;
}

}  // namespace

bool on_gpu() {
  const char* name = std::getenv("TANDEM_TEST_BACKEND");
  return name != nullptr && std::string_view(name) == "cuda";
}

void* visible_memory(std::size_t bytes) {
  return on_gpu() ? visible_pool().take(bytes) : ::operator new(bytes);
}

void release_visible_memory(void* data, std::size_t bytes) noexcept {
  if (on_gpu()) {
    visible_pool().give(data, bytes);
  } else {
    ::operator delete(data);
  }
}

std::vector<float> random_normal(std::uint64_t seed, std::size_t count, float scale) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& v : values) v = normal(engine);
  return values;
}

std::vector<float> random_uniform(std::uint64_t seed, std::size_t count, float low, float high) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(count);
  for (float& v : values) v = uniform(engine);
  return values;
}

Array::Array(DType dtype, std::size_t count)
    : dtype_(dtype), count_(count), bytes_(2 * kGuard + count * dtype_bytes(dtype)) {
  TANDEM_CHECK(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF8E4M3);
  std::fill(bytes_.begin(), bytes_.end(), std::byte{0xd5});
  original_ = bytes_;
}

Array::Array(DType dtype, const std::vector<float>& values) : Array(dtype, values.size()) {
  for (std::size_t i = 0; i < count_; ++i) set(i, values[i]);
  original_ = bytes_;
}

float Array::operator[](std::size_t i) const {
  if (dtype_ == DType::kF32) return static_cast<const float*>(data())[i];
  if (dtype_ == DType::kF8E4M3) return to_float(static_cast<const e4m3*>(data())[i]);
  return to_float(static_cast<const bf16*>(data())[i]);
}

void Array::set(std::size_t i, float value) {
  if (dtype_ == DType::kF32) {
    static_cast<float*>(data())[i] = value;
  } else if (dtype_ == DType::kF8E4M3) {
    static_cast<e4m3*>(data())[i] = to_e4m3(value);
  } else {
    static_cast<bf16*>(data())[i] = to_bf16(value);
  }
}

std::vector<float> Array::values() const { return values(0, count_); }

std::vector<float> Array::values(std::size_t first, std::size_t count) const {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = (*this)[first + i];
  return out;
}

void Array::expect_guards(const char* name) const {
  const std::size_t end = bytes_.size() - kGuard;
  for (std::size_t i = 0; i < kGuard; ++i) {
    ASSERT_EQ(bytes_[i], std::byte{0xd5}) << name << " written " << kGuard - i << " bytes before";
    ASSERT_EQ(bytes_[end + i], std::byte{0xd5}) << name << " written " << i << " bytes behind";
  }
}

void Array::expect_unchanged(const char* name) const {
  EXPECT_TRUE(bytes_ == original_) << "input " << name << " was written";
}

std::unique_ptr<Backend> cpu_backend(int num_threads) {
  return make_backend(BackendKind::kCpu, {.num_threads = num_threads});
}

std::unique_ptr<Backend> test_backend(int num_threads) {
  // Every call is to have run when it returns.
  return on_gpu() ? make_backend(BackendKind::kCuda, {.join_operators = false})
                  : cpu_backend(num_threads);
}

void expect_near(const std::vector<float>& actual, const std::vector<double>& expected,
                 const std::vector<double>& tolerance, DType dtype, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  ASSERT_EQ(actual.size(), tolerance.size()) << what;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    double allowed = tolerance[i];
    if (dtype == DType::kBF16) allowed += kBf16Rounding * std::abs(expected[i]);
    ASSERT_LE(std::abs(double{actual[i]} - expected[i]), allowed)
        << what << ", element " << i << ": " << actual[i] << " instead of " << expected[i];
  }
}

std::string first_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return fmt::format("{} and {} values", a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i])) {
      return fmt::format("value {}: {:.9g} and {:.9g}", i, a[i], b[i]);
    }
  }
  return "";
}

std::string machine_dependence(const std::function<std::vector<float>(Backend&)>& op) {
  if (on_gpu()) {
    const auto first = op(*test_backend(1));
    for (int run = 0; run < 4; ++run) {
      const std::string difference = first_difference(first, op(*test_backend(1)));
      if (!difference.empty()) return fmt::format("the same again: {}", difference);
    }
    return "";
  }
  const auto targets = cpu::supported_targets();
  const auto reference = op(*cpu_backend(1));
  std::string result;
  for (const cpu::Target& target : targets) {
    cpu::force_target(target.id);
    for (const int threads : {1, 2, 3}) {
      const std::string difference = first_difference(reference, op(*cpu_backend(threads)));
      if (!difference.empty() && result.empty()) {
        result = fmt::format("{} with {} threads, against {} with 1: {}", target.name, threads,
                             targets.front().name, difference);
      }
    }
  }
  cpu::force_target(0);
  return result;
}

std::vector<float> picked_rows(const Array& pool, std::size_t width, const std::vector<int>& rows) {
  std::vector<float> picked;
  for (const int r : rows) {
    const auto row = pool.values(static_cast<std::size_t>(r) * width, width);
    picked.insert(picked.end(), row.begin(), row.end());
  }
  return picked;
}

std::string batch_dependence(
    int pool, const std::function<std::vector<float>(const std::vector<int>& rows)>& op) {
  std::vector<std::vector<float>> alone;
  for (int r = 0; r < pool; ++r) alone.push_back(op({r}));
  std::mt19937_64 engine(1);
  for (int trial = 0; trial < 40; ++trial) {
    std::vector<int> rows(static_cast<std::size_t>(pool));
    std::iota(rows.begin(), rows.end(), 0);
    std::shuffle(rows.begin(), rows.end(), engine);
    // Every size once, beginning with all rows; then random sizes.
    const int size = trial < pool ? pool - trial : 1 + static_cast<int>(engine() % rows.size());
    rows.resize(static_cast<std::size_t>(size));
    const std::vector<float> together = op(rows);
    std::size_t offset = 0;
    for (const int r : rows) {
      const auto& expected = alone[static_cast<std::size_t>(r)];
      if (together.size() < offset + expected.size()) return "too few values";
      const std::vector<float> part(
          together.begin() + static_cast<std::ptrdiff_t>(offset),
          together.begin() + static_cast<std::ptrdiff_t>(offset + expected.size()));
      const std::string difference = first_difference(expected, part);
      if (!difference.empty()) {
        return fmt::format("row {} alone and in a batch of {}: {}", r, size, difference);
      }
      offset += expected.size();
    }
  }
  return "";
}

}  // namespace tandem::testing
