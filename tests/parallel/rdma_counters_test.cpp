// Counters of RDMA adapters, on a made-up /sys/class/infiniband.
#include "parallel/rdma_counters.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace tandem {
namespace {

namespace fs = std::filesystem;

class RdmaCountersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("tandem-rdma-test." + std::to_string(getpid()));
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void put(const std::string& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }

  fs::path root_;
};

TEST_F(RdmaCountersTest, ReadsWordsAsBytesAndAddsErrors) {
  put("rocep1s0f0/ports/1/counters/port_xmit_data", "1000\n");
  put("rocep1s0f0/ports/1/counters/port_rcv_data", "500\n");
  put("rocep1s0f0/ports/1/counters/port_rcv_errors", "2\n");
  put("rocep1s0f0/ports/1/hw_counters/out_of_sequence", "3\n");
  const auto before = read_rdma_counters(root_);
  ASSERT_EQ(before.size(), 1u);
  EXPECT_EQ(before.at("rocep1s0f0/1").sent_bytes, 4000);
  EXPECT_EQ(before.at("rocep1s0f0/1").received_bytes, 2000);
  EXPECT_EQ(before.at("rocep1s0f0/1").errors, 5);

  put("rocep1s0f0/ports/1/counters/port_xmit_data", "1250\n");
  put("rocep1s0f0/ports/1/hw_counters/out_of_sequence", "4\n");
  const auto moved = rdma_difference(before, read_rdma_counters(root_));
  EXPECT_EQ(moved.sent_bytes, 1000);
  EXPECT_EQ(moved.received_bytes, 0);
  EXPECT_EQ(moved.errors, 1);
}

TEST_F(RdmaCountersTest, PortsAreAddedAndAResetCountsFromZero) {
  put("a/ports/1/counters/port_xmit_data", "100");
  put("a/ports/1/counters/port_rcv_data", "0");
  put("b/ports/2/counters/port_xmit_data", "100");
  put("b/ports/2/counters/port_rcv_data", "0");
  const auto before = read_rdma_counters(root_);
  put("a/ports/1/counters/port_xmit_data", "110");
  put("b/ports/2/counters/port_xmit_data", "5");
  EXPECT_EQ(rdma_difference(before, read_rdma_counters(root_)).sent_bytes, 60);
}

TEST_F(RdmaCountersTest, WhatCannotBeReadIsUnknownNotZero) {
  EXPECT_TRUE(read_rdma_counters(root_ / "absent").empty());
  put("a/ports/1/counters/port_xmit_data", "N/A (not supported)");
  put("a/ports/1/counters/port_rcv_data", "1");
  put("b/node_type", "1: CA");
  EXPECT_TRUE(read_rdma_counters(root_).empty());
}

}  // namespace
}  // namespace tandem
