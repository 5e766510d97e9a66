// The instruments themselves: what they call bytes, bandwidth, right and wrong. How fast anything
// is is not tested.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/types.h"
#include "bench/bench_weights.h"
#include "bench/gemm.h"
#include "bench/memory.h"
#include "bench/tables.h"
#include "bench/timing.h"

namespace tandem {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr BenchRepeats kQuick{.groups = 1, .runs = 1};

std::unique_ptr<Backend> cpu() { return make_backend(BackendKind::kCpu, {.num_threads = 2}); }

TEST(Timing, LeastMedianIgnoresOutliersBothWays) {
  // Two groups of three: medians 3 and 2.
  const std::vector<double> times = {9, 1, 3, 2, 50, 2};
  std::size_t next = 0;
  EXPECT_EQ(least_median({.groups = 2, .runs = 3}, [&] { return times[next++]; }), 2);
  EXPECT_EQ(next, times.size());
}

TEST(Timing, ASampleIsDividedByItsCalls) {
  const auto backend = cpu();
  std::vector<double> begins_s, ends_s;
  const auto work = [&] {
    begins_s.push_back(monotonic_s());
    while (monotonic_s() < begins_s.back() + 2e-3) {
    }
    ends_s.push_back(monotonic_s());
  };
  const double seconds = device_seconds(*backend, kQuick, {.calls = 5}, work);
  // Once alone, a sample that warms up, and the sample that counts.
  ASSERT_EQ(begins_s.size(), 11u);
  const double sample_s = ends_s[10] - begins_s[6];
  EXPECT_GE(seconds * 5, sample_s);
  EXPECT_LT(seconds, sample_s);
}

TEST(Timing, ShortWorkIsCalledOftenAndLongWorkOnce) {
  const auto backend = cpu();
  EXPECT_EQ(calls_for_sample(*backend, 10, [] {}), 64);
  EXPECT_EQ(calls_for_sample(*backend, 1e-9, [] {}), 1);
}

TEST(MemoryBench, MeasuresEveryKindOfTrafficAndChecksIt) {
  const auto backend = cpu();
  const auto results = run_memory_bench(*backend, {.bytes = (1 << 22) + 5, .repeats = kQuick});
  constexpr std::int64_t kBytes = 1 << 22;  // whole pages of what was asked for
  for (const auto& [traffic, arrays] : {std::pair{MemoryTraffic::kRead, 1},
                                        {MemoryTraffic::kWrite, 1},
                                        {MemoryTraffic::kCopy, 2},
                                        {MemoryTraffic::kAdd, 3}}) {
    const MemoryBenchResult* best = best_of(results, traffic);
    ASSERT_NE(best, nullptr) << traffic_name(traffic);
    EXPECT_EQ(best->bytes, arrays * kBytes) << traffic_name(traffic);
    EXPECT_GT(best->seconds, 0);
  }
  for (const auto& r : results) EXPECT_TRUE(r.correct) << r.method;
}

TEST(MemoryBench, AWrongResultIsNeverTheBest) {
  const std::vector<MemoryBenchResult> results = {
      {.method = "fast", .bytes = 100, .seconds = 1, .correct = false},
      {.method = "slow", .bytes = 100, .seconds = 3, .correct = true},
      {.method = "good", .bytes = 100, .seconds = 2, .correct = true}};
  EXPECT_EQ(best_of(results, MemoryTraffic::kRead)->method, "good");
  EXPECT_EQ(best_of(results, MemoryTraffic::kCopy), nullptr);
  EXPECT_THAT(memory_table(results), HasSubstr("WRONG RESULT"));
}

TEST(BenchWeights, HaveTheSizesOfTheirFormat) {
  const GemmShape shape{256, 512, "test"};
  const auto bytes = [&](ops::WeightFormat format) { return BenchWeights(format, shape).bytes(); };
  constexpr std::int64_t kNumel = 256 * 512;
  EXPECT_EQ(bytes(ops::WeightFormat::kBf16), kNumel * 2);
  EXPECT_EQ(bytes(ops::WeightFormat::kF32), kNumel * 4);
  EXPECT_EQ(bytes(ops::WeightFormat::kFp8Block), kNumel + 2 * 4 * 4);
  EXPECT_EQ(bytes(ops::WeightFormat::kFp8Tensor), kNumel);
  EXPECT_EQ(bytes(ops::WeightFormat::kFp8Channel), kNumel + 256 * 4);
  EXPECT_EQ(bytes(ops::WeightFormat::kNvfp4), kNumel / 2 + kNumel / 16);
  EXPECT_EQ(bytes(ops::WeightFormat::kMxfp4), kNumel / 2 + kNumel / 32);
  EXPECT_EQ(bytes(ops::WeightFormat::kInt8Channel), kNumel + 256 * 4);
  EXPECT_EQ(bytes(ops::WeightFormat::kInt8Group), kNumel + kNumel / 128 * 2);
}

// The check's own decoder against the operator's, for every format, also where blocks are partial.
TEST(GemmBench, ResultsOfEveryFormatAgreeWithTheWeightsValues) {
  const auto backend = cpu();
  const auto formats = supported_formats(*backend);
  EXPECT_GE(formats.size(), 7u);
  const auto results = run_gemm_bench(*backend, {.shapes = {{200, 320, "test"}},
                                                 .formats = formats,
                                                 .rows = {1, 3, 130},
                                                 .repeats = kQuick,
                                                 .ring_bytes = 1 << 20,
                                                 .sample_s = 0});
  ASSERT_EQ(results.size(), formats.size() * 3);
  for (const auto& r : results) {
    EXPECT_TRUE(r.correct()) << format_name(r.format) << ", " << r.num_rows << ": " << r.error;
    EXPECT_EQ(r.bytes, BenchWeights(r.format, r.shape).bytes() +
                           r.num_rows * (r.shape.in_features * 2 + r.shape.out_features * 4));
    EXPECT_DOUBLE_EQ(r.flops_per_s() * r.seconds, 2.0 * r.num_rows * 200 * 320);
  }
}

TEST(GemmBench, ValuesFollowTheFormatsDefinition) {
  const BenchWeights w(ops::WeightFormat::kNvfp4, {8, 64, "test"});
  bool differ = false;
  for (std::int64_t n = 0; n < 8; ++n) {
    for (std::int64_t k = 0; k < 64; ++k) {
      const auto at = static_cast<std::size_t>(n * 64 + k);
      const auto pair = std::to_integer<std::uint8_t>(w.codes()[at / 2]);
      const auto scale = std::to_integer<std::uint8_t>(w.scales()[at / 16]);
      const double expected =
          double{e2m1_to_float(static_cast<std::uint8_t>(k % 2 == 0 ? pair & 15 : pair >> 4))} *
          e4m3_to_float(scale) * w.layout().scale_2;
      ASSERT_EQ(w.value(n, k), expected) << n << ", " << k;
      differ = differ || w.value(n, k) != w.value(0, 0);
    }
  }
  EXPECT_TRUE(differ);
}

TEST(GemmBench, ShapesLeaveOutRowsThatNobodyAsksFor) {
  const auto backend = cpu();
  const auto results = run_gemm_bench(*backend, {.shapes = {{64, 64, "few", 2}, {64, 64, "many"}},
                                                 .rows = {1, 4},
                                                 .repeats = kQuick,
                                                 .ring_bytes = 0,
                                                 .sample_s = 0});
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0].shape.name, "few");
  EXPECT_EQ(results[1].shape.name, "many");
}

TEST(Tables, SharesAreOfTheBoundsAndMissingWithoutThem) {
  const std::vector<GemmBenchResult> results = {{.shape = {1000, 1000, "square"},
                                                 .num_rows = 50,
                                                 .bytes = 2'000'000,
                                                 .seconds = 1e-3}};  // 2 GB/s, 0.1 TFLOP/s
  const GemmBounds both{.read_bytes_per_s = 8e9,
                        .matrix = {.flops_per_s = 4e11, .source = "library"}};
  EXPECT_THAT(gemm_table(results, both),
              ::testing::AllOf(HasSubstr("25.0 %"), HasSubstr("library")));
  const auto j = nlohmann::json::parse(gemm_json({}, results, both));
  EXPECT_DOUBLE_EQ(j["results"][0]["share_of_read_bandwidth"], 0.25);
  EXPECT_DOUBLE_EQ(j["results"][0]["share_of_matrix_rate"], 0.25);
  EXPECT_EQ(j["results"][0]["correct"], true);

  const GemmBounds one{.read_bytes_per_s = 8e9, .matrix = {.source = "none here"}};
  EXPECT_THAT(gemm_table(results, one), HasSubstr("not measured (none here)"));
  const auto without = nlohmann::json::parse(gemm_json({}, results, one));
  EXPECT_FALSE(without.contains("matrix_flops_per_s"));
  EXPECT_FALSE(without["results"][0].contains("share_of_matrix_rate"));
}

TEST(Tables, AWrongProductIsMarked) {
  std::vector<GemmBenchResult> results = {{.shape = {8, 8, "x"}, .num_rows = 1, .seconds = 1}};
  const GemmBounds bounds{.read_bytes_per_s = 1, .matrix = {}};
  EXPECT_THAT(gemm_table(results, bounds), Not(HasSubstr("WRONG")));
  results[0].error = HUGE_VAL;
  EXPECT_THAT(gemm_table(results, bounds), HasSubstr("WRONG"));
  EXPECT_EQ(nlohmann::json::parse(gemm_json({}, results, bounds))["results"][0]["correct"], false);
}

TEST(CollectiveBench, SizesGoFromALatencyToTheLargest) {
  EXPECT_THAT(collective_sizes(1 << 13), ::testing::ElementsAre(8, 32, 128, 512, 2048, 8192));
  EXPECT_THAT(collective_sizes(100), ::testing::ElementsAre(8, 32, 100));
  EXPECT_THAT(collective_sizes(8), ::testing::ElementsAre(8));
}

TEST(CollectiveBench, BusBandwidthIsWhatEachRankMustMove) {
  CollectiveBenchResult r{.bytes = 4'000'000, .num_ranks = 4, .seconds = 1e-3};
  EXPECT_DOUBLE_EQ(r.bus_bytes_per_s(), 6e9);
  r.collective = Collective::kAllGather;
  EXPECT_DOUBLE_EQ(r.bus_bytes_per_s(), 3e9);
}

}  // namespace
}  // namespace tandem
