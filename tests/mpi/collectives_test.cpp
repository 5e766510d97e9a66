// Collectives, agreement and identity on real ranks: CTest runs this under mpirun with 1 to 4
// ranks. Every rank runs the same tests in the same order; a failure on any rank fails the run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/counter_rng.h"
#include "parallel/host_comm.h"
#include "parallel/identity.h"
#include "parallel/mpi_device_comm.h"
#include "parallel/rank_layout.h"
#include "tests/support/mpi_test_main.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using testing::world;

// Values over many magnitudes and signs: their sum depends on the order of adding.
std::vector<float> values_of(int rank, std::int64_t n) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto bits = random_bits({.seed = 7, .request = static_cast<std::uint64_t>(rank)}, 0,
                                  RngPurpose::kDummyWeight, static_cast<std::uint32_t>(i));
    const float magnitude = std::ldexp(uniform01(bits), static_cast<int>(bits % 24));
    values[i] = (bits & 0x80u) != 0 ? -magnitude : magnitude;
  }
  return values;
}

// The tree of determinism.md rule 2, written down recursively: ranks [first, first + span).
float tree_sum(const std::vector<std::vector<float>>& parts, std::size_t element, int first,
               int span) {
  if (span == 1) return parts[static_cast<std::size_t>(first)][element];
  const int half = span / 2;
  const float low = tree_sum(parts, element, first, half);
  if (first + half >= static_cast<int>(parts.size())) return low;
  return low + tree_sum(parts, element, first + half, half);
}

std::vector<float> tree_sums(std::int64_t n) {
  std::vector<std::vector<float>> parts;
  for (int r = 0; r < world().size(); ++r) parts.push_back(values_of(r, n));
  int span = 1;
  while (span < world().size()) span *= 2;
  std::vector<float> sums(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = tree_sum(parts, i, 0, span);
  return sums;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(TreeAllReduce, EqualsTheLocalTreeBitForBitAtAwkwardSizes) {
  StepBeacon beacon;
  const auto comm = make_mpi_device_comm(world(), &beacon, 1000);  // smaller than some of the sums
  for (const std::int64_t n : {1, 3, 17, 255, 999, 1000, 1001, 5120, 70001}) {
    auto data = values_of(world().rank(), n);
    comm->all_reduce_tree_f32(data.data(), n);
    EXPECT_TRUE(same_bits(data, tree_sums(n))) << n << " elements, rank " << world().rank();
  }
  EXPECT_STREQ(beacon.operation.load(), "start") << "the scope must restore the operation";
  EXPECT_FALSE(beacon.waits_for_peers);
}

TEST(TreeAllReduce, TheValuesReallyDependOnTheOrder) {
  if (world().size() < 4) GTEST_SKIP() << "sums of fewer than four parts have one tree up to swaps";
  const std::int64_t n = 5120;
  std::vector<float> in_line(static_cast<std::size_t>(n));
  for (int r = 0; r < world().size(); ++r) {
    const auto part = values_of(r, n);
    std::transform(in_line.begin(), in_line.end(), part.begin(), in_line.begin(), std::plus<>());
  }
  EXPECT_FALSE(same_bits(in_line, tree_sums(n))) << "a ring's order would pass the test above";
}

TEST(TreeAllReduce, NansAndInfinitiesArriveAlikeOnAllRanks) {
  const auto comm = make_mpi_device_comm(world(), nullptr, 16);
  const float inf = std::numeric_limits<float>::infinity();
  // Two NaNs with different payloads, and opposite infinities.
  std::vector<float> data{std::bit_cast<float>(0x7fc00000u + static_cast<unsigned>(world().rank())),
                          world().rank() % 2 == 0 ? inf : -inf, 1.0f};
  comm->all_reduce_tree_f32(data.data(), 3);
  std::vector<std::uint32_t> bits(3);
  std::memcpy(bits.data(), data.data(), 12);
  for (const auto& other : world().all_gather(std::array{bits[0], bits[1], bits[2]})) {
    EXPECT_THAT(other, ElementsAre(bits[0], bits[1], bits[2]));
  }
  EXPECT_EQ(data[2], static_cast<float>(world().size()));
}

TEST(DeviceComm, GathersInRankOrderAlsoInPlace) {
  const auto comm = make_mpi_device_comm(world(), nullptr);
  const int size = world().size();
  const std::int32_t own = 100 + world().rank();
  std::vector<std::int32_t> expected(static_cast<std::size_t>(size));
  std::iota(expected.begin(), expected.end(), 100);

  std::vector<std::int32_t> apart(static_cast<std::size_t>(size), -1);
  comm->all_gather(&own, apart.data(), sizeof own);
  EXPECT_EQ(apart, expected);

  std::vector<std::int32_t> in_place(static_cast<std::size_t>(size), -1);
  auto* slot = &in_place[static_cast<std::size_t>(world().rank())];
  *slot = own;
  comm->all_gather(slot, in_place.data(), sizeof own);
  EXPECT_EQ(in_place, expected);
}

TEST(DeviceComm, OneRankNeedsNoMessages) {
  const auto group = world().split(world().rank(), 0);
  const auto comm = make_mpi_device_comm(group, nullptr);
  EXPECT_STREQ(comm->transport(), "single");
  EXPECT_EQ(comm->size(), 1);
  float value = 3.5f;
  comm->all_reduce_tree_f32(&value, 1);
  EXPECT_EQ(value, 3.5f);
  EXPECT_EQ(mpi_device_comm_scratch_bytes(1, 1000), 0);
  EXPECT_EQ(mpi_device_comm_scratch_bytes(4, 1000), 4000);
  EXPECT_EQ(mpi_device_comm_scratch_bytes(3, 1000), 12000);
}

TEST(HostComm, BroadcastsTextVectorsAndLargePieces) {
  const int last = world().size() - 1;
  std::string text = world().rank() == last ? "grüße" : "something longer than that";
  world().bcast(text, last);
  EXPECT_EQ(text, "grüße");

  std::vector<std::int64_t> numbers;
  if (world().rank() == 0) numbers = {1, -2, std::int64_t{1} << 40};
  world().bcast(numbers);
  EXPECT_THAT(numbers, ElementsAre(1, -2, std::int64_t{1} << 40));

  std::string empty = world().rank() == 0 ? "" : "x";
  world().bcast(empty);
  EXPECT_EQ(empty, "");

  // Two pieces, and not a multiple of the piece.
  std::string large((std::size_t{1} << 28) + 12345, '\0');
  if (world().rank() == 0) {
    large.front() = 'a';
    large.back() = 'z';
  }
  world().bcast_bytes(large.data(), static_cast<std::int64_t>(large.size()));
  EXPECT_EQ(large.front(), 'a');
  EXPECT_EQ(large.back(), 'z');
}

TEST(HostComm, GathersTexts) {
  const std::string own(static_cast<std::size_t>(world().rank()) * 3, 'r');
  const auto everywhere = world().all_gather(own);
  ASSERT_EQ(static_cast<int>(everywhere.size()), world().size());
  for (std::size_t r = 0; r < everywhere.size(); ++r) EXPECT_EQ(everywhere[r].size(), r * 3);
  const int root = world().size() - 1;
  const auto at_root = world().gather(own, root);
  if (world().rank() == root) {
    EXPECT_EQ(at_root, everywhere);
  } else {
    EXPECT_TRUE(at_root.empty());
  }
}

TEST(HostComm, SplitsIntoGroups) {
  const auto group = world().split(world().rank() % 2, 0);
  EXPECT_EQ(group.rank(), world().rank() / 2);
  EXPECT_EQ(group.size(), (world().size() + 1 - world().rank() % 2) / 2);
}

TEST(HostComm, ShipsMessagesWithoutWaiting) {
  HostComm comm = world().duplicate();
  constexpr int kTag = 5;
  constexpr int kMessages = 20;
  if (comm.rank() == 0) {
    // Large messages do not fit into MPI's own buffers: post() must return all the same.
    for (int r = 1; r < comm.size(); ++r) {
      for (int i = 0; i < kMessages; ++i) {
        comm.post(std::string(1 << 20, static_cast<char>('a' + i)), r, kTag);
      }
    }
    comm.barrier();
    comm.flush_posts();
    EXPECT_FALSE(comm.try_receive(kTag).has_value());
  } else {
    comm.barrier();  // not one message was taken before
    for (int i = 0; i < kMessages; ++i) {
      const auto message = comm.receive(0, kTag);
      EXPECT_EQ(message.source, 0);
      ASSERT_EQ(message.bytes.size(), std::size_t{1} << 20);
      EXPECT_EQ(message.bytes[77], static_cast<char>('a' + i)) << "messages must keep their order";
    }
  }
}

TEST(Agreement, NobodyThrowsWhenAllAreWell) {
  EXPECT_EQ(world().together([] { return 42; }), 42);
  world().together([] {});
}

TEST(Agreement, OneFailedRankFailsAllWithItsErrorAndCode) {
  const int culprit = world().size() - 1;
  try {
    world().together([&] {
      if (world().rank() == culprit) {
        throw Error(ExitCode::kPrompts, {.what = "cannot read it", .where = "a.jsonl"});
      }
    });
    FAIL() << "rank " << world().rank() << " went on";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kPrompts);
    EXPECT_EQ(e.scope(), ErrorScope::kAllRanks);
    EXPECT_THAT(e.what(), HasSubstr("cannot read it"));
    EXPECT_THAT(e.what(), HasSubstr("a.jsonl"));
    if (world().size() > 1) {
      EXPECT_THAT(e.what(), HasSubstr(fmt::format("rank {} on ", culprit)));
    }
  }
  world().barrier();  // the communicator is still in step
}

TEST(Agreement, AFailureCommonToAllNamesNoRank) {
  try {
    world().together([] { throw Error(ExitCode::kConfiguration, {.what = "no such key"}); });
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "no such key");
  }
}

TEST(Agreement, OtherExceptionsAreInternal) {
  try {
    world().together([] { throw std::runtime_error("bad luck"); });
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kInternal);
    EXPECT_THAT(e.what(), HasSubstr("bad luck"));
  }
}

TEST(Identity, DifferencesAreRefusedOnEveryRank) {
  const auto layout = agree_rank_layout(world(), {});
  require_same_identity(world(), layout, {{"binary", "abc"}, {"checkpoint", "same"}});
  if (world().size() == 1) return;
  const std::string binary = world().rank() == 1 ? "def" : "abc";
  try {
    require_same_identity(world(), layout, {{"binary", binary}, {"checkpoint", "same"}});
    FAIL() << "rank " << world().rank() << " went on";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfiguration);
    EXPECT_THAT(e.what(), HasSubstr("binary is abc (rank 0 on "));
    EXPECT_THAT(e.what(), HasSubstr("but def (rank 1 on "));
    EXPECT_THAT(e.what(), Not(HasSubstr("checkpoint")));
  }
}

TEST(RankLayout, ComesFromTheRunningRanks) {
  const auto layout = agree_rank_layout(world(), {});
  EXPECT_EQ(layout.rank, world().rank());
  EXPECT_EQ(layout.tensor, world().size());
  EXPECT_EQ(layout.num_hosts, 1);
  EXPECT_EQ(layout.place().local_rank, world().rank());
  EXPECT_EQ(layout.place().ranks_on_host, world().size());
  EXPECT_THROW(agree_rank_layout(world(), {.tensor = world().size() + 1}), Error);
}

}  // namespace

}  // namespace tandem
