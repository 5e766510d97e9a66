#include "kernels/backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/target.h"
#include "tests/kernels/op_check.h"

namespace tandem::testing {
namespace {

TEST(CpuBackend, SaysWhatItIs) {
  const auto backend = cpu_backend(3);
  EXPECT_EQ(backend->kind(), BackendKind::kCpu);
  EXPECT_EQ(backend->num_threads(), 3);
  EXPECT_THAT(backend->description(), ::testing::HasSubstr("3 threads"));
  EXPECT_THAT(backend->description(), ::testing::HasSubstr(cpu::supported_targets().front().name));
  EXPECT_GE(cpu_backend(0)->num_threads(), 1);
}

TEST(CpuBackend, MemoryIsAlignedAndWritable) {
  const auto backend = cpu_backend(2);
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{100000},
                                  (std::size_t{2} << 20) - 1, (std::size_t{5} << 20) + 3}) {
    auto* data = static_cast<std::byte*>(backend->allocate(bytes));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(data) % 256, 0u);
    data[0] = data[bytes - 1] = std::byte{1};
    backend->zero(data, bytes);
    EXPECT_EQ(data[bytes - 1], std::byte{0});
    backend->deallocate(data, bytes);
  }
  backend->deallocate(nullptr, 0);
}

TEST(CpuBackend, CopiesLargeBlocksWhole) {
  const auto backend = cpu_backend(3);
  std::vector<std::uint32_t> source((std::size_t{5} << 20) / 4 + 13), copy(source.size());
  for (std::size_t i = 0; i < source.size(); ++i)
    source[i] = static_cast<std::uint32_t>(i * 2654435761u);
  backend->copy(copy.data(), source.data(), source.size() * sizeof(source[0]));
  backend->synchronize();
  EXPECT_EQ(source, copy);
}

TEST(CpuBackend, TooMuchMemoryIsAnErrorAtOnce) {
  const auto backend = cpu_backend(1);
  for (const std::size_t bytes : {std::size_t{1} << 55, SIZE_MAX - 100}) {
    try {
      backend->allocate(bytes);
      FAIL() << bytes << " bytes were given";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kDoesNotFit);
    }
  }
}

TEST(MakeBackend, RefusesWhatIsNotCompiledIn) {
#if !TANDEM_WITH_CUDA
  EXPECT_EQ(default_backend(), BackendKind::kCpu);
  try {
    make_backend(BackendKind::kCuda, {});
    FAIL() << "a CUDA backend without CUDA";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfiguration);
  }
#endif
}

TEST(Targets, CanBeForcedAndReleased) {
  const auto targets = cpu::supported_targets();
  ASSERT_FALSE(targets.empty());
  for (const cpu::Target& target : targets) {
    cpu::force_target(target.id);
    EXPECT_EQ(cpu::chosen_target_name(), target.name);
  }
  cpu::force_target(0);
  EXPECT_EQ(cpu::chosen_target_name(), targets.front().name);
}

}  // namespace
}  // namespace tandem::testing
