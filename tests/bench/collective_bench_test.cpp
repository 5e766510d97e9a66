// The benchmark of collectives on real ranks: right sums pass its check, wrong ones do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tandem
