// Judging the paths between ranks, and refusing what a job does not accept.
#include "parallel/transport.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "parallel/transport_audit.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Side = PathSighting::Side;
using Lines = std::vector<PathSighting>;

PathSighting seen(int from, int to, Side side, PathKind kind, std::string path) {
  return {.from = from, .to = to, .side = side, .kind = kind, .path = std::move(path)};
}

// What the two ends of a network connection write, for rank `writer`.
Lines network(int writer, int peer, PathKind kind, const std::string& path) {
  return {seen(writer, peer, Side::kSender, kind, path),
          seen(peer, writer, Side::kReceiver, kind, path)};
}
Lines direct(int writer, int peer, PathKind kind, const std::string& path) {
  return {seen(writer, peer, Side::kSender, kind, path)};
}

RankLayout layout_of(const std::vector<std::string>& hosts, int data = 1) {
  std::vector<RankPlace> places(hosts.size());
  for (std::size_t r = 0; r < hosts.size(); ++r) places[r].host = places[r].host_id = hosts[r];
  ParallelSection parallel;
  parallel.data = data;
  return make_rank_layout(0, parallel, places);
}

bool refused(TransportRequire require, const RankLayout& layout, const TransportEvidence& evidence,
             std::string* message = nullptr) {
  try {
    enforce_transport(require, layout, evidence);
    return false;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kTransport);
    if (message != nullptr) *message = error.what();
    return true;
  }
}

TEST(JudgePaths, BothEndsOfANetworkConnectionMustAgree) {
  const auto rdma = judge_paths({network(0, 1, PathKind::kRdma, "NET/IB/0"),
                                 network(1, 0, PathKind::kRdma, "NET/IB/1/GDRDMA")});
  ASSERT_EQ(rdma.size(), 2u);
  EXPECT_EQ(rdma[0].kind, PathKind::kRdma);
  EXPECT_EQ(rdma[1].kind, PathKind::kRdma);
  EXPECT_EQ(rdma[0].how, "NET/IB/0 on 1 channel");

  const auto contradiction = judge_paths({network(0, 1, PathKind::kRdma, "NET/IB/0"),
                                          network(1, 0, PathKind::kSocket, "NET/Socket/0")});
  for (const auto& path : contradiction) EXPECT_EQ(path.kind, PathKind::kUnknown) << path.how;
  EXPECT_THAT(contradiction[0].how, HasSubstr("the receiver says NET/Socket/0"));

  for (const auto& path : judge_paths({network(0, 1, PathKind::kRdma, "NET/IB/0"), {}})) {
    EXPECT_EQ(path.kind, PathKind::kUnknown) << "the log of rank 1 was not readable";
  }
}

TEST(JudgePaths, TheWorstChannelCounts) {
  auto zero = network(0, 1, PathKind::kRdma, "NET/IB/0");
  auto one = network(1, 0, PathKind::kRdma, "NET/IB/0");
  zero.push_back(seen(0, 1, Side::kSender, PathKind::kSocket, "NET/Socket/0"));
  one.push_back(seen(0, 1, Side::kReceiver, PathKind::kSocket, "NET/Socket/0"));
  const auto paths = judge_paths({zero, one});
  EXPECT_EQ(paths[0].kind, PathKind::kSocket);
  EXPECT_EQ(paths[1].kind, PathKind::kRdma);
}

TEST(JudgePaths, NothingWrittenIsUnknown) {
  const auto paths = judge_paths({{}, {}});
  ASSERT_EQ(paths.size(), 2u);
  for (const auto& path : paths) EXPECT_EQ(path.kind, PathKind::kUnknown);
}

TEST(JudgePaths, LinesOfOthersProveNothing) {
  // Rank 0 cannot know how 1 sends; ranks out of range belong to another communicator.
  const auto paths = judge_paths({{seen(1, 0, Side::kSender, PathKind::kP2p, "P2P/IPC"),
                                   seen(0, 7, Side::kSender, PathKind::kP2p, "P2P/IPC"),
                                   seen(0, 0, Side::kSender, PathKind::kP2p, "P2P/IPC")},
                                  {}});
  for (const auto& path : paths) EXPECT_EQ(path.kind, PathKind::kUnknown);
}

TEST(JudgePaths, ARingJoinsAllAndAGapShows) {
  std::vector<Lines> ring;
  for (int r = 0; r < 4; ++r) ring.push_back(direct(r, (r + 1) % 4, PathKind::kP2p, "P2P/CUMEM"));
  for (const auto& path : judge_paths(ring)) EXPECT_EQ(path.kind, PathKind::kP2p);
  ring[2].clear();
  int unknown = 0;
  for (const auto& path : judge_paths(ring)) unknown += path.kind == PathKind::kUnknown ? 1 : 0;
  EXPECT_GT(unknown, 0);
}

TEST(NcclTransport, SocketsAreRefusedWhereRdmaIsWanted) {
  const auto two_hosts = layout_of({"a", "b"});
  const auto one_host = layout_of({"a", "a"});
  const auto of = [](const RankLayout& layout, PathKind kind, const std::string& path) {
    return nccl_transport(layout,
                          judge_paths({network(0, 1, kind, path), network(1, 0, kind, path)}));
  };
  const auto socket = of(two_hosts, PathKind::kSocket, "NET/Socket/0");
  EXPECT_EQ(socket.name, "nccl NET/Socket");
  std::string message;
  EXPECT_TRUE(refused(TransportRequire::kAuto, two_hosts, socket, &message));
  EXPECT_THAT(message, HasSubstr("0 -> 1: NET/Socket/0"));
  EXPECT_TRUE(refused(TransportRequire::kRdma, two_hosts, socket));
  EXPECT_FALSE(refused(TransportRequire::kAny, two_hosts, socket));

  const auto rdma = of(two_hosts, PathKind::kRdma, "NET/IB/0");
  EXPECT_EQ(rdma.name, "nccl NET/IB");
  EXPECT_TRUE(rdma.crosses_hosts_by_rdma);
  EXPECT_FALSE(refused(TransportRequire::kAuto, two_hosts, rdma));
  EXPECT_FALSE(refused(TransportRequire::kRdma, two_hosts, rdma));

  // P2P and SHM switched off on one box: NCCL takes sockets between two GPUs of one host.
  const auto loopback = of(one_host, PathKind::kSocket, "NET/Socket/0");
  EXPECT_TRUE(refused(TransportRequire::kRdma, one_host, loopback));
  EXPECT_FALSE(refused(TransportRequire::kAuto, one_host, loopback));

  const auto other = of(two_hosts, PathKind::kOtherNet, "NET/UCX/0");
  EXPECT_TRUE(refused(TransportRequire::kAuto, two_hosts, other));
}

TEST(NcclTransport, WithinAHostNoNetworkIsNeeded) {
  const auto on_one = layout_of({"a", "a"});
  for (const auto& [kind, path] : {std::pair{PathKind::kP2p, "P2P/CUMEM/read"},
                                   std::pair{PathKind::kShm, "SHM/direct/direct"}}) {
    const auto evidence =
        nccl_transport(on_one, judge_paths({direct(0, 1, kind, path), direct(1, 0, kind, path)}));
    EXPECT_FALSE(refused(TransportRequire::kRdma, on_one, evidence)) << path;
    EXPECT_FALSE(evidence.crosses_hosts_by_rdma);
  }
  // Shared memory between hosts: the log is of something else.
  const auto on_two = layout_of({"a", "b"});
  EXPECT_TRUE(
      refused(TransportRequire::kAuto, on_two,
              nccl_transport(on_two, judge_paths({direct(0, 1, PathKind::kShm, "SHM/x"),
                                                  direct(1, 0, PathKind::kShm, "SHM/x")}))));
}

TEST(NcclTransport, UnknownIsNotRdmaAndTheWorstIsNamedFirst) {
  const auto layout = layout_of({"a", "b"});
  const auto nothing = nccl_transport(layout, judge_paths({{}, {}}));
  EXPECT_EQ(nothing.name, "nccl unknown");
  EXPECT_TRUE(refused(TransportRequire::kAuto, layout, nothing));
  EXPECT_TRUE(refused(TransportRequire::kAuto, layout, nccl_transport(layout, {})));

  const auto mixed =
      nccl_transport(layout, {{.from = 0, .to = 1, .kind = PathKind::kRdma, .how = "r"},
                              {.from = 1, .to = 0, .kind = PathKind::kSocket, .how = "s"}});
  EXPECT_EQ(mixed.name, "nccl NET/Socket + NET/IB");
  EXPECT_FALSE(mixed.is_rdma);
  EXPECT_THAT(mixed.pairs, ElementsAre("1 -> 0: s", "0 -> 1: r"));
}

TEST(Transport, ReplicasOnTwoHostsNeedNoRdmaUnlessAskedFor) {
  const auto layout = layout_of({"a", "b"}, 2);
  EXPECT_FALSE(refused(TransportRequire::kAuto, layout, mpi_transport(layout)));
  EXPECT_TRUE(refused(TransportRequire::kRdma, layout, mpi_transport(layout)));
}

TEST(Transport, CountersThatStandStillSpeakAgainstRdma) {
  EXPECT_TRUE(counters_contradict(0, 1000, true));
  EXPECT_FALSE(counters_contradict(5000, 1000, true));
  EXPECT_FALSE(counters_contradict(0, 1000, false)) << "nothing could be read";
}

}  // namespace
}  // namespace tandem
