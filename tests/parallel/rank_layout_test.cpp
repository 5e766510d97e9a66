#include "parallel/rank_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem {
namespace {

using ::testing::HasSubstr;

std::vector<RankPlace> places(const std::vector<std::string>& hosts) {
  std::vector<RankPlace> result;
  for (const auto& host : hosts) {
    auto& place = result.emplace_back();
    place.host = host;
    place.host_id = "id of " + host;
    place.pid = 100 + static_cast<long>(result.size());
  }
  return result;
}

std::string refusal(int ranks, const ParallelSection& parallel) {
  try {
    plan_rank_layout(ranks, parallel);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfiguration);
    return e.what();
  }
  return "accepted";
}

TEST(RankLayout, AutoTensorUsesAllRanksOfAReplica) {
  const auto one = plan_rank_layout(4, {});
  EXPECT_EQ(one.tensor, 4);
  EXPECT_EQ(one.data, 1);
  const auto two = plan_rank_layout(4, {.tensor = {}, .data = 2});
  EXPECT_EQ(two.tensor, 2);
  EXPECT_EQ(two.data, 2);
}

TEST(RankLayout, NeighboursFormATensorGroup) {
  const std::vector<std::string> hosts{"a", "a", "b", "b"};
  std::vector<int> replicas;
  std::vector<int> tensor_ranks;
  for (int r = 0; r < 4; ++r) {
    const auto layout = make_rank_layout(r, {.tensor = 2, .data = 2}, places(hosts));
    replicas.push_back(layout.replica);
    tensor_ranks.push_back(layout.tensor_rank);
    EXPECT_EQ(layout.replica_leader(), r % 2 == 0);
  }
  EXPECT_EQ(replicas, (std::vector{0, 0, 1, 1}));
  EXPECT_EQ(tensor_ranks, (std::vector{0, 1, 0, 1}));
}

TEST(RankLayout, CountsRanksPerHostByIdentityNotByName) {
  auto list = places({"spark1", "spark2", "spark1"});
  list[2].host = "container-on-spark1";
  const auto layout = make_rank_layout(2, {}, list);
  EXPECT_EQ(layout.num_hosts, 2);
  EXPECT_TRUE(layout.spans_hosts());
  EXPECT_EQ(layout.place().local_rank, 1);
  EXPECT_EQ(layout.place().ranks_on_host, 2);
  EXPECT_EQ(layout.places[1].local_rank, 0);
  EXPECT_EQ(layout.places[1].ranks_on_host, 1);
}

TEST(RankLayout, MapNamesEveryRank) {
  const auto layout = make_rank_layout(0, {.tensor = {}, .data = 2}, places({"spark1", "spark2"}));
  EXPECT_EQ(render_rank_map(layout),
            "rank 0 -> spark1 (pid 101, replica 0, tensor 0 of 1)\n"
            "rank 1 -> spark2 (pid 102, replica 1, tensor 0 of 1)\n");
}

TEST(RankLayout, RefusesWhatDoesNotMultiplyToTheRanks) {
  EXPECT_THAT(refusal(2, {.tensor = 4}), HasSubstr("-np 4"));
  EXPECT_THAT(refusal(4, {.tensor = 2, .data = 1}), HasSubstr("tensor 2 x data 1 = 2 ranks"));
  EXPECT_THAT(refusal(3, {.tensor = {}, .data = 2}), HasSubstr("start 4 ranks"));
  EXPECT_THAT(refusal(1, {.tensor = {}, .data = 0}), HasSubstr("positive"));
  EXPECT_THAT(refusal(1, {.tensor = 0}), HasSubstr("positive"));
}

}  // namespace
}  // namespace tandem
