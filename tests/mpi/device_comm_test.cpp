// The collectives of a device on real ranks, through host memory and by size, and the start-up test
// that judges them: CTest runs this under mpirun with 1 to 4 ranks. On a machine without a GPU the
// device is the CPU, whose memory is staged all the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "base/counter_rng.h"
#include "kernels/backend.h"
#include "parallel/group_check.h"
#include "parallel/host_comm.h"
#include "parallel/host_staged_comm.h"
#include "parallel/make_device_comm.h"
#include "parallel/mpi_device_comm.h"
#include "parallel/nccl_paths.h"
#include "parallel/sized_comm.h"
#include "parallel/transport_audit.h"
#include "tests/support/mpi_test_main.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

using testing::world;

std::unique_ptr<Backend> cpu() { return make_backend(BackendKind::kCpu, {.num_threads = 1}); }

constexpr GroupCheckOptions kQuick{
    .small_bytes = 256, .large_bytes = 64 << 10, .small_calls = 2, .repeats = 3};

std::vector<float> values(std::int64_t n) {
  std::vector<float> v(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < v.size(); ++i) {
    const auto bits =
        random_bits({.seed = 7, .request = static_cast<std::uint64_t>(world().rank())}, 0,
                    RngPurpose::kDummyWeight, static_cast<std::uint32_t>(i));
    v[i] = uniform01(bits) * static_cast<float>(1u << bits % 20);
  }
  return v;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool is_set(const char* variable) { return std::getenv(variable) != nullptr; }

TEST(NcclPaths, WhatOneRankTurnsOffIsOffOnAll) {
  const int last = world().size() - 1;
  for (const char* name : {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"}) {
    unsetenv(name);
  }
  EXPECT_THAT(agree_on_nccl_paths(world()), ::testing::IsEmpty());
  EXPECT_FALSE(is_set("NCCL_P2P_DISABLE"));

  setenv("NCCL_IB_DISABLE", "0", 1);  // not off
  if (world().rank() == last) setenv("NCCL_P2P_DISABLE", "1", 1);
  setenv("NCCL_SHM_DISABLE", "1", 1);  // off on all
  const std::vector<UnequalPath> unequal = agree_on_nccl_paths(world());
  EXPECT_TRUE(is_set("NCCL_P2P_DISABLE"));
  EXPECT_STREQ(std::getenv("NCCL_IB_DISABLE"), "0");
  if (world().size() == 1) {
    EXPECT_THAT(unequal, ::testing::IsEmpty());
  } else {
    const UnequalPath expected{.variable = "NCCL_P2P_DISABLE", .off_on = {last}};
    EXPECT_THAT(unequal, ::testing::ElementsAre(expected));
    EXPECT_THAT(unequal[0].text(), HasSubstr(fmt::format("on rank {} only", last)));
  }
  EXPECT_THAT(agree_on_nccl_paths(world()), ::testing::IsEmpty()) << "they still differ";
  for (const char* name : {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"}) {
    unsetenv(name);
  }
}

// Passes everything on to MPI but spoils one element of what one rank receives.
class SpoilingComm final : public DeviceComm {
 public:
  SpoilingComm(int victim, bool sums) : victim_(victim), sums_(sums) {}
  int rank() const override { return mpi_->rank(); }
  int size() const override { return mpi_->size(); }
  const char* transport() const override { return "spoiling"; }
  bool capturable() const override { return false; }
  void all_reduce_tree_f32(float* data, std::int64_t n) override {
    mpi_->all_reduce_tree_f32(data, n);
    if (sums_ && rank() == victim_ && n > 1) data[n - 1] += 1;
  }
  void all_gather(const void* send, void* recv, std::int64_t bytes_per_rank) override {
    mpi_->all_gather(send, recv, bytes_per_rank);
    if (!sums_ && rank() == victim_) static_cast<char*>(recv)[bytes_per_rank - 1] ^= 1;
  }
  double seconds_in_collectives() const override { return 0; }

 private:
  std::unique_ptr<DeviceComm> mpi_ = make_mpi_device_comm(world(), nullptr);
  int victim_;
  bool sums_;
};

TEST(HostStagedComm, GivesTheBitsOfMpiInPiecesOfAnySize) {
  const auto backend = cpu();
  const auto mpi = make_mpi_device_comm(world(), nullptr);
  for (const std::int64_t piece_bytes : {4, 1000, 1 << 20}) {
    const auto staged = make_host_staged_comm(world(), *backend, nullptr, piece_bytes);
    for (const std::int64_t n : {1, 249, 250, 251, 1777}) {
      auto expected = values(n);
      auto data = expected;
      mpi->all_reduce_tree_f32(expected.data(), n);
      staged->all_reduce_tree_f32(data.data(), n);
      EXPECT_TRUE(same_bits(data, expected)) << n << " floats in pieces of " << piece_bytes;
    }
  }
}

TEST(HostStagedComm, GathersAlsoInPlaceAndOddSizes) {
  const auto backend = cpu();
  for (const std::int64_t piece_bytes : {4, 1000}) {
    const auto staged = make_host_staged_comm(world(), *backend, nullptr, piece_bytes);
    for (const std::int64_t bytes : {1, 3, 999, 1000, 1001, 2500}) {
      const auto at = [&](int rank) { return static_cast<std::size_t>(rank * bytes); };
      const auto length = static_cast<std::size_t>(bytes);
      std::vector<unsigned char> expected(at(world().size()));
      for (std::size_t i = 0; i < expected.size(); ++i) {
        expected[i] = static_cast<unsigned char>(i * 7 + i / length);
      }
      std::vector<unsigned char> own(
          expected.begin() + static_cast<std::ptrdiff_t>(at(world().rank())),
          expected.begin() + static_cast<std::ptrdiff_t>(at(world().rank() + 1)));
      std::vector<unsigned char> apart(expected.size());
      staged->all_gather(own.data(), apart.data(), bytes);
      EXPECT_EQ(apart, expected) << bytes;
      std::vector<unsigned char> in_place(expected.size());
      std::copy(own.begin(), own.end(),
                in_place.begin() + static_cast<std::ptrdiff_t>(at(world().rank())));
      staged->all_gather(in_place.data() + at(world().rank()), in_place.data(), bytes);
      EXPECT_EQ(in_place, expected) << bytes;
    }
  }
}

TEST(HostStagedComm, IsNotForGraphs) {
  const auto backend = cpu();
  const auto staged = make_host_staged_comm(world(), *backend, nullptr);
  EXPECT_EQ(staged->capturable(), world().size() == 1);
  EXPECT_FALSE(staged->connection_log().has_value());
}

TEST(SizedComm, TheSizeOfTheMessageDecidesAndShowsInNoBit) {
  if (world().size() == 1) GTEST_SKIP() << "one rank sums nothing";
  // A wrong sum tells which of the two was used.
  const auto sized = make_sized_comm(std::make_unique<SpoilingComm>(world().rank(), true),
                                     make_mpi_device_comm(world(), nullptr), 40);
  std::vector<float> small(10, 1.0f);
  std::vector<float> large(11, 1.0f);
  sized->all_reduce_tree_f32(small.data(), 10);
  sized->all_reduce_tree_f32(large.data(), 11);
  const auto sum = static_cast<float>(world().size());
  EXPECT_EQ(small.back(), sum + 1);
  EXPECT_EQ(large.back(), sum);

  const auto backend = cpu();
  const auto both = make_sized_comm(make_host_staged_comm(world(), *backend, nullptr),
                                    make_mpi_device_comm(world(), nullptr), 4000);
  for (const std::int64_t n : {1000, 1001}) {
    auto expected = values(n);
    auto data = expected;
    make_mpi_device_comm(world(), nullptr)->all_reduce_tree_f32(expected.data(), n);
    both->all_reduce_tree_f32(data.data(), n);
    EXPECT_TRUE(same_bits(data, expected));
  }
}

TEST(GroupCheck, MeasuresACommThatSumsRight) {
  const auto backend = cpu();
  const auto comm = make_device_comm(world(), *backend, {});
  const auto result = check_group(world(), *comm, *backend, kQuick);
  if (world().size() == 1) {
    EXPECT_EQ(result.small_s, 0);
  } else {
    EXPECT_GT(result.small_s, 0);
    EXPECT_GT(result.large_s, 0);
  }
}

TEST(GroupCheck, OneWrongElementOnOneRankIsNoticedByAll) {
  if (world().size() == 1) GTEST_SKIP() << "one rank receives nothing";
  const auto backend = cpu();
  for (const bool sums : {true, false}) {
    SpoilingComm comm(world().size() - 1, sums);
    try {
      check_group(world(), comm, *backend, kQuick);
      FAIL() << "rank " << world().rank() << " believes it";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kTransport);
      EXPECT_EQ(error.scope(), ErrorScope::kAllRanks);
      EXPECT_THAT(error.what(), HasSubstr(sums ? "the sum of the" : "the gathered vector of the"));
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("rank {} on ", world().size() - 1)));
    }
  }
}

TEST(TransportAudit, AllRanksHaveTheSameEvidenceAndMpiProvesNothing) {
  const auto backend = cpu();
  const auto layout = agree_rank_layout(world(), {});
  const auto comm = make_device_comm(world(), *backend, {});
  const auto evidence = audit_transport(world(), layout, world(), *comm, *backend, kQuick);
  EXPECT_FALSE(evidence.is_rdma);
  EXPECT_EQ(evidence.latency_us.has_value(), world().size() > 1);
  for (const auto& text : world().all_gather(describe_transport(evidence))) {
    EXPECT_EQ(text, describe_transport(evidence));
  }
}

// Says that it keeps a record, and writes what NCCL would.
class RecordingComm final : public DeviceComm {
 public:
  explicit RecordingComm(std::string log) : log_(std::move(log)) {}
  int rank() const override { return mpi_->rank(); }
  int size() const override { return mpi_->size(); }
  const char* transport() const override { return "nccl"; }
  bool capturable() const override { return true; }
  void all_reduce_tree_f32(float* data, std::int64_t n) override {
    mpi_->all_reduce_tree_f32(data, n);
  }
  void all_gather(const void* send, void* recv, std::int64_t bytes_per_rank) override {
    mpi_->all_gather(send, recv, bytes_per_rank);
  }
  double seconds_in_collectives() const override { return 0; }
  std::optional<std::string> connection_log() const override { return log_; }

 private:
  std::unique_ptr<DeviceComm> mpi_ = make_mpi_device_comm(world(), nullptr);
  std::string log_;
};

TEST(TransportAudit, BringsTogetherWhatEveryRankSaw) {
  if (world().size() != 2) GTEST_SKIP() << "written for two ranks";
  const auto backend = cpu();
  const auto layout = agree_rank_layout(world(), {});
  const int own = world().rank();
  const auto line = [](int from, int to, const char* rest) {
    return fmt::format("h:1:2 [0] NCCL INFO Channel 00/0 : {}[0] -> {}[0] {}\n", from, to, rest);
  };
  const std::string send = line(own, 1 - own, "[send] via NET/Socket/0");
  const std::string receive = line(1 - own, own, "[receive] via NET/Socket/0");
  RecordingComm whole(send + receive);
  const auto evidence = audit_transport(world(), layout, world(), whole, *backend, kQuick);
  EXPECT_EQ(evidence.name, "nccl NET/Socket");
  EXPECT_EQ(evidence.pairs.size(), 2u);
  EXPECT_THROW(enforce_transport(TransportRequire::kRdma, layout, evidence), Error);

  RecordingComm half(own == 0 ? send + receive : "");
  EXPECT_EQ(audit_transport(world(), layout, world(), half, *backend, kQuick).name, "nccl unknown");
}

TEST(Collectives, FollowTheJobAndTheBackend) {
  using Choice = CollectivesChoice;
  EXPECT_EQ(resolve_collectives(Choice::kAuto, BackendKind::kCpu), CollectivesKind::kMpi);
  EXPECT_EQ(resolve_collectives(Choice::kHost, BackendKind::kCpu), CollectivesKind::kMpi);
  EXPECT_EQ(resolve_collectives(Choice::kHost, BackendKind::kCuda), CollectivesKind::kHostStaged);
  EXPECT_THROW(resolve_collectives(Choice::kNccl, BackendKind::kCpu), Error);
  EXPECT_EQ(gpu_sharing(CollectivesKind::kHostStaged), GpuSharing::kAllow);
  EXPECT_EQ(gpu_sharing(CollectivesKind::kNccl), GpuSharing::kRefuse);
}

// Sums values() on the device and compares them with MPI's, bit for bit.
void expect_sums_of_mpi(DeviceComm& comm, Backend& backend) {
  const auto mpi = make_mpi_device_comm(world(), nullptr);
  // The last one takes two pieces of NCCL's sum over more than two ranks.
  for (const std::int64_t n : {1, 5120, 70001, (1 << 20) + 3}) {
    auto expected = values(n);
    auto data = expected;
    const std::size_t bytes = expected.size() * sizeof(float);
    mpi->all_reduce_tree_f32(expected.data(), n);
    void* device = backend.allocate(bytes);
    backend.copy(device, data.data(), bytes);
    comm.all_reduce_tree_f32(static_cast<float*>(device), n);
    backend.copy(data.data(), device, bytes);
    backend.synchronize();
    backend.deallocate(device, bytes);
    EXPECT_TRUE(same_bits(data, expected)) << n << " floats, rank " << world().rank();
  }
}

TEST(OnGpus, RanksMayShareOneThroughHostMemory) {
  if (default_backend() != BackendKind::kCuda) GTEST_SKIP() << "no GPU";
  const auto layout = agree_rank_layout(world(), {});
  const int gpu = agree_gpu(world(), layout, GpuSharing::kAllow);
  const auto backend = make_backend(BackendKind::kCuda, {.num_threads = 1, .device = gpu});
  const auto comm = make_device_comm(world(), *backend, {.collectives = CollectivesChoice::kHost});
  EXPECT_EQ(comm->capturable(), world().size() == 1);
  expect_sums_of_mpi(*comm, *backend);
  check_group(world(), *comm, *backend, kQuick);
}

TEST(OnGpus, NcclSumsAlongTheTreeAndItsPathsAreKnown) {
  if (default_backend() != BackendKind::kCuda) GTEST_SKIP() << "no GPU";
  const auto layout = agree_rank_layout(world(), {});
  int gpu = 0;
  try {
    gpu = agree_gpu(world(), layout, GpuSharing::kRefuse);
  } catch (const Error& error) {
    EXPECT_EQ(error.scope(), ErrorScope::kAllRanks);
    EXPECT_THAT(error.what(), HasSubstr("would use the same GPU"));
    GTEST_SKIP() << "fewer GPUs than ranks: " << error.what();
  }
  const auto backend = make_backend(BackendKind::kCuda, {.num_threads = 1, .device = gpu});
  const auto comm = make_device_comm(world(), *backend, {});
  EXPECT_TRUE(comm->capturable());
  expect_sums_of_mpi(*comm, *backend);
  const auto evidence =
      audit_transport(world(), layout, world(), *comm, *backend, default_group_check(*comm));
  if (world().size() == 1) return;
  EXPECT_THAT(evidence.name, HasSubstr("nccl "));
  EXPECT_THAT(evidence.name, Not(HasSubstr("unknown")));
  if (world().rank() != 0) return;
  fmt::print("{}\n{}\n{}\n", describe_transport(evidence), fmt::join(evidence.pairs, "\n"),
             fmt::join(evidence.devices, "\n"));
}

}  // namespace

}  // namespace tandem
