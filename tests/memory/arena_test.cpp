#include "memory/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "base/error.h"
#include "memory/host_memory.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

struct Buffers {
  float* weights = nullptr;
  std::uint8_t* scales = nullptr;
  float* activations = nullptr;
};

// The same code plans and allocates.
Buffers reserve_buffers(ArenaPlan& arena) {
  return {.weights = arena.reserve_array<float>("weights", 1000),
          .scales = arena.reserve_array<std::uint8_t>("weights", 3),
          .activations = arena.reserve_array<float>("activations", 1)};
}

ArenaMemory host_pages(std::size_t bytes) { return allocate_host_pages(bytes, 2); }

TEST(Arena, PlanAndRealPassAgree) {
  ArenaPlan plan;
  const auto planned = reserve_buffers(plan);
  EXPECT_EQ(planned.weights, nullptr);
  EXPECT_EQ(plan.used_bytes(), 4096u + 256u + 4u);

  Arena arena("test", plan, host_pages);
  const auto real = reserve_buffers(arena);
  EXPECT_EQ(arena.used_bytes(), plan.used_bytes());
  for (const void* at : {static_cast<void*>(real.weights), static_cast<void*>(real.scales),
                         static_cast<void*>(real.activations)}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(at) % kArenaAlignment, 0u);
  }
  std::memset(real.weights, 1, 4000);
  std::memset(real.scales, 2, 3);
  *real.activations = 3;
  EXPECT_EQ(reinterpret_cast<unsigned char*>(real.weights)[3999], 1) << "no overlap";
}

TEST(Arena, LedgerAddsUpToTheSize) {
  ArenaPlan plan;
  reserve_buffers(plan);
  ASSERT_EQ(plan.parts().size(), 2u);
  EXPECT_EQ(plan.parts()[0].name, "weights");
  std::int64_t sum = 0;
  for (const auto& part : plan.parts()) sum += part.bytes;
  EXPECT_EQ(sum, static_cast<std::int64_t>(plan.used_bytes()));
}

TEST(Arena, MoreThanPlannedIsADefect) {
  ArenaPlan plan;
  plan.reserve("kv", 1000);
  Arena arena("kv", plan, host_pages);
  arena.reserve("kv", 900);
  EXPECT_THROW(arena.reserve("kv", 1000), Error);
  EXPECT_THROW(arena.reserve("kv", static_cast<std::size_t>(-1)), Error) << "wraps around";
  EXPECT_THROW(plan.reserve("kv", 1, 48), Error) << "no power of two";
}

TEST(Arena, RefusedAllocationNamesThePartsAndExits4) {
  ArenaPlan plan;
  plan.reserve("weights NVFP4", std::size_t{3} << 30);
  plan.reserve("kv pages", std::size_t{5} << 30);
  try {
    Arena arena("device", plan, [](std::size_t) { return ArenaMemory{}; });
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kDoesNotFit);
    EXPECT_THAT(e.what(), HasSubstr("8.00 GiB"));
    EXPECT_THAT(e.what(), HasSubstr("arena device"));
    EXPECT_THAT(e.what(), HasSubstr("weights NVFP4"));
    EXPECT_THAT(e.what(), HasSubstr("kv pages"));
  }
}

TEST(Arena, ReleasesItsMemoryOnce) {
  int released = 0;
  alignas(kArenaAlignment) static std::byte storage[256];
  {
    ArenaPlan plan;
    plan.reserve("x", 256);
    Arena arena("x", plan, [&](std::size_t) {
      return ArenaMemory{.data = storage, .release = [&] { ++released; }};
    });
  }
  EXPECT_EQ(released, 1);
}

TEST(Arena, EmptyPlanNeedsNoMemory) {
  Arena arena("none", ArenaPlan(), [](std::size_t) -> ArenaMemory { throw "not called"; });
  EXPECT_EQ(arena.size_bytes(), 0u);
  EXPECT_EQ(arena.reserve("x", 0), 0u);
}

TEST(HostPages, AreResidentFromTheStart) {
  const MemorySampler sampler;
  const auto before = *sampler.process().rss_bytes;
  constexpr std::size_t kBytes = (std::size_t{64} << 20) + 5;
  const auto memory = allocate_host_pages(kBytes, 3);
  ASSERT_NE(memory.data, nullptr);
  EXPECT_GE(*sampler.process().rss_bytes - before, std::int64_t{60} << 20);
  EXPECT_EQ(memory.data[kBytes - 1], std::byte{0});
  memory.release();
}

TEST(HostPages, ImpossibleSizesGiveNothing) {
  EXPECT_EQ(allocate_host_pages(std::size_t{1} << 60).data, nullptr);
}

}  // namespace
}  // namespace tandem
