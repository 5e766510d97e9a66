// Reads what the kernel says about memory: the host's, this process's, its cgroup's. Parsing works
// on file text; MemorySampler finds the files. Judging the values is budget's and watchdog's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace tandem {

// A value, or why there is none. Missing is never zero.
struct Reading {
  std::optional<std::int64_t> value;
  std::string reason;  // empty when there is a value

  static Reading of(std::int64_t v) { return {.value = v, .reason = {}}; }
  static Reading missing(std::string why) {
    return {.value = std::nullopt, .reason = std::move(why)};
  }
  explicit operator bool() const { return value.has_value(); }
  std::int64_t operator*() const { return *value; }
};

struct MemInfo {  // /proc/meminfo, bytes
  Reading total, available, free, cached, swap_total, swap_free;
};

struct ProcessMemory {
  Reading rss_bytes, peak_rss_bytes;  // /proc/self/status: VmRSS, VmHWM
  Reading major_faults;               // /proc/self/stat, since start
  Reading disk_read_bytes;            // /proc/self/io: read_bytes, since start
};

struct Pressure {  // /proc/pressure/memory: stalled microseconds since boot
  Reading some_us, full_us;
};

// Bytes. limit is missing, with a reason, where there is none; usage leaves out the file pages that
// the kernel drops first.
struct CgroupMemory {
  Reading limit, usage;
};

struct MemorySample {
  double time_s = 0;  // monotonic
  MemInfo host;
  ProcessMemory process;
  Pressure pressure;
  CgroupMemory cgroup;
};

MemInfo parse_meminfo(std::string_view text);
// Fills rss and peak only.
ProcessMemory parse_process_status(std::string_view text);
Reading parse_major_faults(std::string_view stat_text);
Reading parse_disk_reads(std::string_view io_text);
Pressure parse_pressure(std::string_view text);

// Where this process's memory cgroup lies below the cgroup mount, by /proc/self/cgroup.
struct CgroupPath {
  int version = 2;
  std::string path;  // "/", "/user.slice/job7"
};
std::optional<CgroupPath> parse_cgroup_path(std::string_view text);

class MemorySampler {
 public:
  // root: "/" but for tests, which give a directory with proc/ and sys/ in it.
  explicit MemorySampler(std::filesystem::path root = "/");

  MemorySample sample() const;
  MemInfo host() const;
  ProcessMemory process() const;
  Pressure pressure() const;
  // The tightest limit of the process's cgroup and its ancestors, and the usage there.
  CgroupMemory cgroup() const;

 private:
  std::filesystem::path root_;
};

}  // namespace tandem
