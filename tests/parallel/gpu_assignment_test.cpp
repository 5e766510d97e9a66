// Which GPU a rank takes, for launchers that show all ranks the same GPUs and for those that do
// not.
#include "parallel/gpu_assignment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Gpus = std::vector<VisibleGpu>;

RankLayout layout_of(const std::vector<std::string>& hosts) {
  std::vector<RankPlace> places(hosts.size());
  for (std::size_t r = 0; r < hosts.size(); ++r) places[r].host = places[r].host_id = hosts[r];
  return make_rank_layout(0, ParallelSection{}, places);
}

const VisibleGpu kA{.id = "GPU-a", .name = "NVIDIA H200"};
const VisibleGpu kB{.id = "GPU-b", .name = "NVIDIA H200"};

TEST(AssignGpus, OneARankWhateverTheLauncherShows) {
  const auto one_host = layout_of({"x", "x"});
  EXPECT_THAT(assign_gpus(one_host, {{kA, kB}, {kA, kB}}, GpuSharing::kRefuse), ElementsAre(0, 1));
  EXPECT_THAT(assign_gpus(one_host, {{kA}, {kB}}, GpuSharing::kRefuse), ElementsAre(0, 0));
  EXPECT_THAT(assign_gpus(one_host, {{kB, kA}, {kA, kB}}, GpuSharing::kRefuse), ElementsAre(0, 0));
  EXPECT_THAT(assign_gpus(one_host, {{kA}, {kA, kB}}, GpuSharing::kRefuse), ElementsAre(0, 1));
}

TEST(AssignGpus, HostsDoNotDisturbEachOther) {
  // The same name on two hosts (clones of a virtual machine) is two GPUs.
  EXPECT_THAT(assign_gpus(layout_of({"x", "y"}), {{kA}, {kA}}, GpuSharing::kRefuse),
              ElementsAre(0, 0));
  EXPECT_THAT(assign_gpus(layout_of({"x", "y", "x", "y"}), {{kA, kB}, {kA, kB}, {kA, kB}, {kA, kB}},
                          GpuSharing::kRefuse),
              ElementsAre(0, 0, 1, 1));
}

TEST(AssignGpus, OneGpuForTwoRanksIsRefusedWithBothRanksAndTheGpu) {
  for (const auto& gpus : {std::vector<Gpus>{{kA}, {kA}, {}}, std::vector<Gpus>{{kA}, {}, {kA}}}) {
    const int second = gpus[1].empty() ? 2 : 1;
    try {
      assign_gpus(layout_of({"x", "x", "x"}), gpus, GpuSharing::kRefuse);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfiguration);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("ranks 0 and " + std::to_string(second) + " on x"),
                                      HasSubstr("NVIDIA H200 (GPU-a)")));
    }
  }
}

TEST(AssignGpus, SharingSpreadsTheRanks) {
  EXPECT_THAT(assign_gpus(layout_of({"x", "x"}), {{kA}, {kA}}, GpuSharing::kAllow),
              ElementsAre(0, 0));
  EXPECT_THAT(assign_gpus(layout_of({"x", "x", "x", "x"}), {{kA, kB}, {kA, kB}, {kA, kB}, {kA, kB}},
                          GpuSharing::kAllow),
              ElementsAre(0, 1, 0, 1));
}

TEST(AssignGpus, NoGpuIsTheBackendsToRefuse) {
  EXPECT_THAT(assign_gpus(layout_of({"x"}), {{}}, GpuSharing::kRefuse), ElementsAre(0));
}

}  // namespace
}  // namespace tandem
