#include "memory/host_memory.h"

#include <gtest/gtest.h>

#include "tests/support/test_data.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kKiB = 1024;

// A fake file tree with proc/ and sys/.
class MemorySamplerTest : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    testing::write_text(root_ / path, text);
  }
  testing::TempDir root_;
};

TEST(ParseMeminfo, ReadsBytesAndTellsNamesApart) {
  const auto info = parse_meminfo(
      "MemTotal:       125000000 kB\nMemFree:         1000 kB\nMemAvailable:    2000 kB\n"
      "SwapCached:      9 kB\nCached:          300 kB\nSwapTotal:       16 kB\nSwapFree:        12 "
      "kB\n");
  EXPECT_EQ(*info.total, 125000000 * kKiB);
  EXPECT_EQ(*info.free, 1000 * kKiB);
  EXPECT_EQ(*info.available, 2000 * kKiB);
  EXPECT_EQ(*info.cached, 300 * kKiB) << "not SwapCached";
  EXPECT_EQ(*info.swap_total, 16 * kKiB);
  EXPECT_EQ(*info.swap_free, 12 * kKiB);
}

TEST(ParseMeminfo, MissingIsMissingWithAReason) {
  const auto info = parse_meminfo("MemTotal: 1 kB\nMemFree: lots\n");
  EXPECT_FALSE(info.available);
  EXPECT_EQ(info.available.reason, "no line MemAvailable:");
  EXPECT_FALSE(info.free);
  EXPECT_EQ(info.free.reason, "not a number after MemFree:");
}

TEST(ParseProcess, ReadsRssFaultsAndReads) {
  const auto process = parse_process_status("Name:\tx\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n");
  EXPECT_EQ(*process.rss_bytes, 1024 * kKiB);
  EXPECT_EQ(*process.peak_rss_bytes, 2048 * kKiB);
  // A command name with spaces and parentheses must not shift the fields.
  EXPECT_EQ(*parse_major_faults("42 (a) b (c) R 1 2 3 4 5 6 700 8 99 10 11\n"), 99);
  EXPECT_FALSE(parse_major_faults("42 (a) R 1 2"));
  EXPECT_FALSE(parse_major_faults(""));
  EXPECT_EQ(*parse_disk_reads("rchar: 5\nread_bytes: 4096\nwrite_bytes: 1\n"), 4096);
}

TEST(ParsePressure, ReadsTotals) {
  const auto pressure = parse_pressure(
      "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\n"
      "full avg10=0.00 avg60=0.00 avg300=0.00 total=567\n");
  EXPECT_EQ(*pressure.some_us, 1234);
  EXPECT_EQ(*pressure.full_us, 567);
  EXPECT_FALSE(parse_pressure("some avg10=0.00\n").some_us);
}

TEST(ParseCgroupPath, PrefersTheMemoryControllerOfAHybridSystem) {
  const auto v2 = parse_cgroup_path("0::/user.slice/job7\n");
  ASSERT_TRUE(v2);
  EXPECT_EQ(v2->version, 2);
  EXPECT_EQ(v2->path, "/user.slice/job7");
  const auto hybrid = parse_cgroup_path("9:cpu:/\n4:memory:/a/b\n0::/x\n");
  ASSERT_TRUE(hybrid);
  EXPECT_EQ(hybrid->version, 1);
  EXPECT_EQ(hybrid->path, "/a/b");
  EXPECT_FALSE(parse_cgroup_path("9:cpu:/\n"));
}

TEST_F(MemorySamplerTest, EmptyTreeGivesReasonsNotZeros) {
  const auto sample = MemorySampler(root_.path()).sample();
  for (const auto* reading :
       {&sample.host.available, &sample.host.swap_free, &sample.process.rss_bytes,
        &sample.process.major_faults, &sample.process.disk_read_bytes, &sample.pressure.full_us,
        &sample.cgroup.limit, &sample.cgroup.usage}) {
    EXPECT_FALSE(*reading);
    EXPECT_FALSE(reading->reason.empty());
  }
}

TEST_F(MemorySamplerTest, TheTightestAncestorLimits) {
  write("proc/self/cgroup", "0::/slice/job\n");
  write("sys/fs/cgroup/slice/job/memory.max", "max\n");
  write("sys/fs/cgroup/slice/job/memory.current", "500\n");
  write("sys/fs/cgroup/slice/memory.max", "1000\n");
  write("sys/fs/cgroup/slice/memory.current", "900\n");
  write("sys/fs/cgroup/slice/memory.stat", "anon 600\ninactive_file 250\nactive_file 50\n");
  const auto cgroup = MemorySampler(root_.path()).cgroup();
  EXPECT_EQ(*cgroup.limit, 1000);
  EXPECT_EQ(*cgroup.usage, 650) << "without the file pages that go first";
}

TEST_F(MemorySamplerTest, NoLimitStillHasUsage) {
  write("proc/self/cgroup", "0::/job\n");
  write("sys/fs/cgroup/job/memory.max", "max\n");
  write("sys/fs/cgroup/job/memory.current", "500\n");
  const auto cgroup = MemorySampler(root_.path()).cgroup();
  EXPECT_FALSE(cgroup.limit);
  EXPECT_EQ(cgroup.limit.reason, "no limit");
  EXPECT_EQ(*cgroup.usage, 500);
}

TEST_F(MemorySamplerTest, VersionOneInAContainer) {
  // The path is the host's; the mount shows only the container's group.
  write("proc/self/cgroup", "4:memory:/docker/0123\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "4096\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1024\n");
  auto cgroup = MemorySampler(root_.path()).cgroup();
  EXPECT_EQ(*cgroup.limit, 4096);
  EXPECT_EQ(*cgroup.usage, 1024);
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(MemorySampler(root_.path()).cgroup().limit) << "version 1's way to say none";
}

TEST(MemorySampler, ReadsThisMachine) {
  const auto sample = MemorySampler().sample();
  ASSERT_TRUE(sample.host.available) << sample.host.available.reason;
  EXPECT_GT(*sample.host.total, *sample.host.available);
  ASSERT_TRUE(sample.process.rss_bytes) << sample.process.rss_bytes.reason;
  EXPECT_GT(*sample.process.rss_bytes, 1 << 20);
  EXPECT_GE(*sample.process.peak_rss_bytes, *sample.process.rss_bytes);
  EXPECT_TRUE(sample.process.major_faults) << sample.process.major_faults.reason;
}

}  // namespace
}  // namespace tandem
