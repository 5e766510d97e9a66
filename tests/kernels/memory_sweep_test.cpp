#include "kernels/ops/memory_sweep.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "base/error.h"
#include "kernels/ops/device_timer.h"
#include "kernels/ops/matrix_rate.h"
#include "tests/kernels/op_check.h"

namespace tandem::testing {
namespace {

using Words = Vector<std::uint32_t>;

// Shorter than a tile, whole tiles, and tiles with a rest, for every way of sweeping.
constexpr std::size_t kSizes[] = {4, 1020, 8192, 100 * 8192, 100 * 8192 + 1332, (1 << 20) + 4};

ops::SweepArgs args_of(const Words& x, const Words& z, Words& y, int way) {
  return {.x = x.data(),
          .z = z.data(),
          .y = y.data(),
          .words = static_cast<std::int64_t>(x.size()),
          .way = way};
}

TEST(MemorySweep, FillWritesTheStatedWords) {
  const auto backend = test_backend(2);
  for (const std::size_t size : kSizes) {
    Words y(size, 7);
    ops::sweep_fill(*backend, y.data(), static_cast<std::int64_t>(size));
    backend->synchronize();
    for (std::size_t i = 0; i < size; ++i)
      ASSERT_EQ(y[i], static_cast<std::uint32_t>(i) * 2654435761u) << i << " of " << size;
  }
}

TEST(MemorySweep, TotalIsTheSumOfTheWords) {
  std::uint32_t sum = 0;
  for (std::int64_t i = 0; i < 3000; ++i) {
    ASSERT_EQ(ops::sweep_total(i), sum) << i;
    sum += ops::sweep_word(i);
  }
}

TEST(MemorySweep, SumsAddEveryWordOnce) {
  const auto backend = test_backend(2);
  for (int way = 0; way < ops::num_sweep_ways(*backend); ++way) {
    for (const std::size_t size : kSizes) {
      Words x(size), y(1, 5);
      ops::sweep_fill(*backend, x.data(), static_cast<std::int64_t>(size));
      ops::sweep_sum(*backend, args_of(x, x, y, way));
      backend->synchronize();
      EXPECT_EQ(y[0], 5 + ops::sweep_total(static_cast<std::int64_t>(size)))
          << "way " << way << ", " << size << " words";
    }
  }
}

TEST(MemorySweep, CopiesAndAddsEveryWord) {
  const auto backend = test_backend(3);
  for (int way = 0; way < ops::num_sweep_ways(*backend); ++way) {
    for (const std::size_t size : kSizes) {
      Words x(size), z(size), copy(size, 1), sum(size, 1);
      for (std::size_t i = 0; i < size; ++i) {
        x[i] = static_cast<std::uint32_t>(i * i + 3);
        z[i] = static_cast<std::uint32_t>(i << 7);
      }
      ops::sweep_copy(*backend, args_of(x, z, copy, way));
      ops::sweep_add(*backend, args_of(x, z, sum, way));
      backend->synchronize();
      for (std::size_t i = 0; i < size; ++i) {
        ASSERT_EQ(copy[i], x[i]) << "way " << way << ", word " << i << " of " << size;
        ASSERT_EQ(sum[i], x[i] + z[i]) << "way " << way << ", word " << i << " of " << size;
      }
    }
  }
}

TEST(MemorySweep, RefusesWhatItCannotSweep) {
  const auto backend = test_backend(1);
  Words x(16), y(16);
  auto args = args_of(x, x, y, 0);
  args.words = 13;
  EXPECT_THROW(ops::sweep_copy(*backend, args), Error);
  args.words = 12;
  args.x = x.data() + 1;
  EXPECT_THROW(ops::sweep_copy(*backend, args), Error);
  args.x = x.data();
  args.way = ops::num_sweep_ways(*backend);
  EXPECT_THROW(ops::sweep_sum(*backend, args), Error);
}

TEST(DeviceTimer, RunsTheWorkAndTakesItsTime) {
  const auto backend = test_backend(1);
  for (const auto submit : {ops::Submit::kOneByOne, ops::Submit::kCaptured}) {
    constexpr std::size_t kWords = 1 << 20;
    Words x(kWords), y(1, 0);
    ops::sweep_fill(*backend, x.data(), kWords);
    const auto args = args_of(x, x, y, 0);
    const auto timer =
        ops::make_device_timer(*backend, submit, 3, [&] { ops::sweep_sum(*backend, args); });
    backend->synchronize();
    const std::uint32_t before = y[0];
    const double seconds = timer->seconds();
    EXPECT_EQ(y[0], before + 3 * ops::sweep_total(kWords));
    // 12 MiB: no machine reads them in a microsecond, none needs ten seconds.
    EXPECT_GT(seconds, 1e-6);
    EXPECT_LT(seconds, 10);
  }
}

TEST(MatrixRate, IsPositiveOrSaysWhyThereIsNone) {
  const auto backend = test_backend(1);
  const ops::MatrixRate rate = ops::measure_matrix_rate(*backend, 512);
  EXPECT_GE(rate.flops_per_s, 0);
  EXPECT_FALSE(rate.source.empty());
  // No library on a CPU.
  EXPECT_TRUE(on_gpu() || rate.flops_per_s == 0);
}

}  // namespace
}  // namespace tandem::testing
