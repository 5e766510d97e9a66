// Reading NCCL's log: recorded spellings of several versions, and text that is not what it seems.
#include "parallel/nccl_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Side = PathSighting::Side;

PathSighting only_path(const std::string& message) {
  const auto facts = parse_nccl_log("spark1:4711:4730 [0] NCCL INFO " + message + "\n");
  EXPECT_EQ(facts.paths.size(), 1u) << message;
  return facts.paths.empty() ? PathSighting{} : facts.paths.front();
}

TEST(NcclLog, KnowsTheSpellingsOfSeveralVersions) {
  struct Case {
    const char* message;
    int from, to;
    Side side;
    PathKind kind;
  };
  const Case cases[] = {
      {"Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", 0, 1, Side::kSender, PathKind::kP2p},
      {"Channel 01/0 : 1[1] -> 0[0] via P2P/direct pointer", 1, 0, Side::kSender, PathKind::kP2p},
      {"Channel 00/0 : 8[0] -> 15[7] via P2P/IPC/read", 8, 15, Side::kSender, PathKind::kP2p},
      {"Channel 00/0 : 0[0] -> 2[2] via P2P/indirect/1[1]", 0, 2, Side::kSender, PathKind::kP2p},
      {"Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL", 0, 1, Side::kSender, PathKind::kP2p},
      {"Channel 00 : 0[0] -> 4[4] via SHM/direct/direct", 0, 4, Side::kSender, PathKind::kShm},
      {"Ring 00 : 0[1b000] -> 7[41000] via direct shared memory", 0, 7, Side::kSender,
       PathKind::kShm},
      {"Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0", 0, 1, Side::kSender, PathKind::kRdma},
      {"Channel 09/0 : 1[0] -> 0[0] [receive] via NET/IBext_v10/1", 1, 0, Side::kReceiver,
       PathKind::kRdma},
      {"Channel 01 : 2[c7000] -> 0[87000] [receive] via NET/IB/5/GDRDMA", 2, 0, Side::kReceiver,
       PathKind::kRdma},
      {"Channel 00/0 : 3[3] -> 8[0] [send] via NET/IB/0(1)/GDRDMA/Shared", 3, 8, Side::kSender,
       PathKind::kRdma},
      {"Ring 00 : 43 -> 44 [receive] via NET/Socket/0", 43, 44, Side::kReceiver, PathKind::kSocket},
      {"Channel 00/0 : 0[35000] -> 1[f5000] [receive] via NET/AWS Libfabric/0", 0, 1,
       Side::kReceiver, PathKind::kOtherNet},
      {"Channel 00/0 : 0[0] -> 1[0] [send] via NET/Libfabric/3/GDRDMA", 0, 1, Side::kSender,
       PathKind::kRdma},
  };
  for (const auto& expected : cases) {
    const auto seen = only_path(expected.message);
    EXPECT_EQ(seen.from, expected.from) << expected.message;
    EXPECT_EQ(seen.to, expected.to) << expected.message;
    EXPECT_EQ(seen.side, expected.side) << expected.message;
    EXPECT_EQ(seen.kind, expected.kind) << expected.message;
  }
  EXPECT_EQ(only_path("Channel 00/0 : 3[3] -> 8[0] [send] via NET/IB/0/GDRDMA").path,
            "NET/IB/0/GDRDMA");
}

TEST(NcclLog, PrefixesOfLaunchersAndTimeStampsDoNotMatter) {
  const auto facts = parse_nccl_log(
      "[1,0]<stdout>:a-0:30:70 [4] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\r\n"
      "[2025-11-02 10:11:12] b:1:2 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] via P2P/IPC\n");
  ASSERT_EQ(facts.paths.size(), 2u);
  EXPECT_EQ(facts.paths[0].path, "NET/IB/0");
  EXPECT_EQ(facts.paths[1].path, "P2P/IPC");
}

TEST(NcclLog, TakesNothingFromOtherLines) {
  const auto facts = parse_nccl_log(
      "spark1:1:2 [0] NCCL INFO Channel 00/16 :    0   7   6   5\n"
      "spark1:1:2 [0] NCCL INFO Ring 00 : 17 -> 0 -> 7\n"
      "spark1:1:2 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1|-1->0->1/-1/-1\n"
      "spark1:1:2 [0] NCCL INFO CollNet 00/0 : 3 [send] via COLLNET/SHARP/0\n"
      "spark1:1:2 [0] NCCL INFO New proxy send connection 3 from local rank 0, transport 2\n"
      "spark1:1:2 [0] NCCL WARN Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n"
      "the model wrote: Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n"
      "\n\0\xff garbage\n");
  EXPECT_THAT(facts.paths, IsEmpty());
  EXPECT_THAT(facts.devices, IsEmpty());
}

TEST(NcclLog, WhatIsCutShortIsNotBelieved) {
  const std::string whole =
      "spark1:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA";
  for (std::size_t length = 0; length < whole.size(); ++length) {
    for (const auto& seen : parse_nccl_log(whole.substr(0, length) + "\n").paths) {
      // From "NET/IB/0" on nothing that matters is missing.
      if (length < whole.find("/GDRDMA")) {
        EXPECT_EQ(seen.kind, PathKind::kUnknown) << length;
      }
    }
    EXPECT_THAT(parse_nccl_log(whole.substr(0, length)).paths, IsEmpty()) << "no end of line yet";
  }
  EXPECT_EQ(parse_nccl_log(whole + "\n").paths.size(), 1u);
}

TEST(NcclLog, TwoMessagesInOneLineAreLeftOut) {
  EXPECT_THAT(parse_nccl_log("a:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[a:1:3 [0] NCCL INFO "
                             "Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/0\n")
                  .paths,
              IsEmpty());
}

TEST(NcclLog, NamesTheAdaptersWithoutAddresses) {
  const std::string lines =
      "s:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB "
      "eth0:192.168.11.1<0>\n"
      "s:1:2 [0] NCCL INFO NET/Socket : Using [0]ib0:192.168.11.1<0>\n";
  EXPECT_THAT(parse_nccl_log(lines + lines).devices,
              ElementsAre("NET/IB [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]", "NET/Socket [0]ib0"));
}

TEST(NcclPath, OnlyWholeKnownNamesAreRdma) {
  EXPECT_EQ(classify_nccl_path("NET/IB/0"), PathKind::kRdma);
  for (const char* path : {"NET/IB", "NET/IB/", "NET/IB/x", "NET/", "NET", "", "IB/0"}) {
    EXPECT_EQ(classify_nccl_path(path), PathKind::kUnknown) << path;
  }
  for (const char* path : {"NET/IBhost/0", "NET/UCX/0", "NET/FasTrak/1"}) {
    EXPECT_EQ(classify_nccl_path(path), PathKind::kOtherNet) << path;
  }
}

}  // namespace
}  // namespace tandem
