#include "engine/power_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(NetworkBytes, AddsInterfacesButNotTheLoopback) {
  const auto bytes = parse_network_bytes(
      "Inter-|   Receive                                                |  Transmit\n"
      " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets\n"
      "    lo:  900 1 0 0 0 0 0 0  800 1 0 0 0 0 0 0\n"
      "  eth0: 1000 2 3 4 5 6 7 8  9000 10 0 0 0 0 0 0\n"
      "enp1s0f0np0:20 1 0 0 0 0 0 0 30 1 0 0 0 0 0 0\n");
  ASSERT_TRUE(bytes.has_value());
  EXPECT_EQ(bytes->received, 1020);
  EXPECT_EQ(bytes->sent, 9030);
}

TEST(NetworkBytes, WhatIsNoTableIsMissing) {
  EXPECT_FALSE(parse_network_bytes("").has_value());
  EXPECT_FALSE(parse_network_bytes("no such file").has_value());
  EXPECT_FALSE(parse_network_bytes("eth0: 12 1\n").has_value());
}

// A device without a memory clock, as GB10 is one.
class FakeSensors final : public DeviceSensors {
 public:
  DeviceReadings read() override {
    return {.utilization_percent = 97,
            .power_w = 42.5,
            .sm_clock_hz = 2.4e9,
            .memory_clock_hz = {},
            .temperature_c = 61,
            .missing = {"memory clock: Not Supported"}};
  }
  std::string driver_version() override { return "580.95.05"; }
};

class PowerSamplerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    log_set_sink([this](LogLevel, std::string_view text) {
      const std::scoped_lock lock(mutex_);
      messages_.emplace_back(text);
    });
  }
  void TearDown() override { log_set_sink(nullptr); }

  void deliver(const PowerSample& row) {
    const std::scoped_lock lock(mutex_);
    rows_.push_back(row);
  }
  std::size_t num_rows() {
    const std::scoped_lock lock(mutex_);
    return rows_.size();
  }
  void wait_for_rows(std::size_t count) {
    const double end_s = monotonic_s() + 60;
    while (num_rows() < count && monotonic_s() < end_s)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_GE(num_rows(), count);
  }

  std::mutex mutex_;
  std::vector<PowerSample> rows_;
  std::vector<std::string> messages_;
};

TEST_F(PowerSamplerTest, RowsHoldWhatTheDeviceOffersAndNothingElse) {
  {
    PowerSampler sampler(
        3, monotonic_s(), [this](const PowerSample& row) { deliver(row); }, 1e-3);
    sampler.watch(std::make_unique<FakeSensors>(), "");
    wait_for_rows(num_rows() + 4);
  }
  const PowerSample& row = rows_.back();
  EXPECT_EQ(row.rank, 3);
  EXPECT_EQ(row.gpu_utilization_percent, 97);
  EXPECT_EQ(row.power_w, 42.5);
  EXPECT_EQ(row.sm_clock_hz, 2.4e9);
  EXPECT_EQ(row.memory_clock_hz, std::nullopt);
  EXPECT_EQ(row.temperature_c, 61);
  EXPECT_GE(row.time_s, rows_.front().time_s);
  EXPECT_TRUE(row.network_received_bytes.has_value());
  // Said once, not once a second.
  EXPECT_THAT(messages_, ElementsAre(HasSubstr("memory clock: Not Supported")));
}

TEST_F(PowerSamplerTest, WithoutADeviceTheReasonIsLogged) {
  {
    PowerSampler sampler(
        0, 0, [this](const PowerSample& row) { deliver(row); }, 1e-3);
    sampler.watch(nullptr, "no GPU is used");
    wait_for_rows(2);
  }
  EXPECT_EQ(rows_.back().power_w, std::nullopt);
  EXPECT_THAT(messages_, ElementsAre(HasSubstr("no GPU is used")));
}

}  // namespace
}  // namespace tandem
