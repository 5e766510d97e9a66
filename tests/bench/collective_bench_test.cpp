// The benchmark of collectives on real ranks: right sums pass its check, wrong ones do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/bench_rows.h"
#include "bench/collective.h"
#include "parallel/make_device_comm.h"

namespace tandem {
namespace {

constexpr BenchRepeats kQuick{.groups = 1, .runs = 1};

TEST(CollectiveBench, ResultsAreRightAndAgreeBetweenRanks) {
  const HostComm world = HostComm::world();
  const auto backend = make_backend(BackendKind::kCpu, {.num_threads = 1});
  const auto comm = make_device_comm(world, *backend, {});
  constexpr std::int64_t kMax = (std::int64_t{13} << 20) + 4;  // more than is checked in full
  const auto results = run_collective_bench(world, *backend, *comm,
                                            {.max_bytes = kMax, .repeats = kQuick, .sample_s = 0});
  ASSERT_EQ(results.size(), 2 * collective_sizes(kMax).size());
  for (const auto& r : results) {
    EXPECT_TRUE(r.correct) << collective_name(r.collective) << " of " << r.bytes;
    EXPECT_EQ(r.num_ranks, world.size());
    EXPECT_EQ(r.bytes % (4 * world.size()), 0);
    const auto all = world.all_gather(r.seconds);
    EXPECT_THAT(all, ::testing::Each(r.seconds));
  }
}

// Gets the last element wrong.
class Careless final : public DeviceComm {
 public:
  explicit Careless(DeviceComm& comm) : comm_(comm) {}
  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  const char* transport() const override { return "careless"; }
  bool capturable() const override { return false; }
  void all_reduce_tree_f32(float* data, std::int64_t n) override {
    comm_.all_reduce_tree_f32(data, n);
    data[n - 1] += 1;
  }
  void all_gather(const void* send, void* recv, std::int64_t bytes_per_rank) override {
    comm_.all_gather(send, recv, bytes_per_rank);
    static_cast<float*>(recv)[size() * bytes_per_rank / 4 - 1] = -1;
  }
  double seconds_in_collectives() const override { return 0; }

 private:
  DeviceComm& comm_;
};

TEST(CollectiveBench, WrongSumsAreFound) {
  const HostComm world = HostComm::world();
  const auto backend = make_backend(BackendKind::kCpu, {.num_threads = 1});
  const auto comm = make_device_comm(world, *backend, {});
  Careless wrong(*comm);
  for (const auto& r : run_collective_bench(
           world, *backend, wrong, {.max_bytes = 4096, .repeats = kQuick, .sample_s = 0})) {
    EXPECT_FALSE(r.correct) << collective_name(r.collective) << " of " << r.bytes;
  }
}

TEST(BenchRows, RowsOfAllRanksComeToRankZeroInOrder) {
  const HostComm world = HostComm::world();
  BenchConditions conditions;
  conditions.rank = world.rank();
  conditions.num_ranks = world.size();
  conditions.host = fmt::format("host-{}", world.rank());
  // Rank r has r rows.
  const std::vector<MemoryBenchResult> results(
      static_cast<std::size_t>(world.rank()),
      {.method = "sweep", .bytes = 7, .seconds = 0.5 + world.rank(), .correct = true});
  const auto all = gather_contents(world, memory_contents(conditions, results));
  const auto& rows = std::get<std::vector<BenchMemoryRow>>(all.rows);
  if (world.rank() != 0) {
    EXPECT_TRUE(all.ranks.empty() && rows.empty());
    return;
  }
  ASSERT_EQ(all.ranks.size(), static_cast<std::size_t>(world.size()));
  std::size_t at = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    const BenchRankRow& row = all.ranks[static_cast<std::size_t>(rank)];
    EXPECT_EQ(row.rank, rank);
    EXPECT_EQ(row.host, fmt::format("host-{}", rank));
    EXPECT_EQ(row.read_bytes_per_s.has_value(), rank > 0);
    for (int i = 0; i < rank; ++i, ++at) {
      ASSERT_LT(at, rows.size());
      EXPECT_EQ(rows[at].rank, rank);
      EXPECT_EQ(rows[at].method, "sweep");
      EXPECT_EQ(rows[at].seconds, 0.5 + rank);
    }
  }
  EXPECT_EQ(at, rows.size());
}

}  // namespace
}  // namespace tandem
