#include "memory/host_memory.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/clock.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

std::optional<std::int64_t> to_number(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return std::nullopt;
  text.remove_prefix(first);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// The number after `key` at the start of a line: "MemFree:   123 kB".
Reading number_after(std::string_view text, std::string_view key, std::int64_t unit) {
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    const auto line = text.substr(at, end - at);
    if (line.starts_with(key)) {
      const auto value = to_number(line.substr(key.size()));
      if (!value) return Reading::missing("not a number after " + std::string(key));
      return Reading::of(*value * unit);
    }
    at = end + 1;
  }
  return Reading::missing("no line " + std::string(key));
}

struct FileText {
  std::optional<std::string> text;
  std::string reason;
};

FileText read_file(const fs::path& path) {
  errno = 0;
  std::ifstream in(path);
  std::ostringstream text;
  if (in && (in.peek() == std::ifstream::traits_type::eof() || text << in.rdbuf())) {
    return {.text = text.str(), .reason = {}};
  }
  return {.text = std::nullopt,
          .reason = path.string() + ": " + (errno != 0 ? std::strerror(errno) : "cannot be read")};
}

Reading read_number(const fs::path& path) {
  const auto file = read_file(path);
  if (!file.text) return Reading::missing(file.reason);
  const auto value = to_number(*file.text);
  return value ? Reading::of(*value) : Reading::missing(path.string() + ": not a number");
}

// Applies parse to the file's text, or returns what it makes of a missing file.
template <typename Parse, typename Missing>
auto parsed(const fs::path& path, Parse&& parse, Missing&& missing) {
  const auto file = read_file(path);
  return file.text ? parse(*file.text) : missing(file.reason);
}

}  // namespace

MemInfo parse_meminfo(std::string_view text) {
  constexpr std::int64_t kKiB = 1024;
  return {.total = number_after(text, "MemTotal:", kKiB),
          .available = number_after(text, "MemAvailable:", kKiB),
          .free = number_after(text, "MemFree:", kKiB),
          .cached = number_after(text, "Cached:", kKiB),
          .swap_total = number_after(text, "SwapTotal:", kKiB),
          .swap_free = number_after(text, "SwapFree:", kKiB)};
}

ProcessMemory parse_process_status(std::string_view text) {
  return {.rss_bytes = number_after(text, "VmRSS:", 1024),
          .peak_rss_bytes = number_after(text, "VmHWM:", 1024),
          .major_faults = Reading::missing("not read"),
          .disk_read_bytes = Reading::missing("not read")};
}

Reading parse_major_faults(std::string_view stat_text) {
  // Field 12 of proc(5)'s stat. The second field, a file name in parentheses, may hold anything, so
  // counting starts after its last parenthesis, at field 3.
  const auto close = stat_text.rfind(')');
  if (close == std::string_view::npos) return Reading::missing("stat without a command name");
  std::istringstream fields(std::string(stat_text.substr(close + 1)));
  std::string field;
  for (int number = 3; number <= 12; ++number) {
    if (!(fields >> field)) return Reading::missing("stat with too few fields");
  }
  const auto value = to_number(field);
  return value ? Reading::of(*value) : Reading::missing("stat: majflt is not a number");
}

Reading parse_disk_reads(std::string_view io_text) {
  return number_after(io_text, "read_bytes:", 1);
}

Pressure parse_pressure(std::string_view text) {
  const auto total = [&](std::string_view kind) {
    for (std::size_t at = 0; at < text.size();) {
      const auto end = std::min(text.find('\n', at), text.size());
      const auto line = text.substr(at, end - at);
      const auto key = line.find("total=");
      if (line.starts_with(kind) && key != std::string_view::npos) {
        const auto value = to_number(line.substr(key + 6));
        if (value) return Reading::of(*value);
      }
      at = end + 1;
    }
    return Reading::missing("no total for '" + std::string(kind) + "'");
  };
  return {.some_us = total("some"), .full_us = total("full")};
}

std::optional<CgroupPath> parse_cgroup_path(std::string_view text) {
  // Lines are id:controllers:path. Version 2 has id 0 and no controllers; a hybrid system has both,
  // and there the memory controller, if listed, is version 1's.
  std::optional<CgroupPath> found;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    const auto line = text.substr(at, end - at);
    at = end + 1;
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const auto controllers = line.substr(first + 1, second - first - 1);
    const std::string path(line.substr(second + 1));
    if (controllers == "memory") return CgroupPath{.version = 1, .path = path};
    if (controllers.empty()) found = CgroupPath{.version = 2, .path = path};
  }
  return found;
}

MemorySampler::MemorySampler(fs::path root) : root_(std::move(root)) {}

MemorySample MemorySampler::sample() const {
  return {.time_s = monotonic_s(),
          .host = host(),
          .process = process(),
          .pressure = pressure(),
          .cgroup = cgroup()};
}

MemInfo MemorySampler::host() const {
  return parsed(root_ / "proc/meminfo", parse_meminfo, [](const std::string& why) {
    const auto gone = Reading::missing(why);
    return MemInfo{gone, gone, gone, gone, gone, gone};
  });
}

ProcessMemory MemorySampler::process() const {
  const auto reading = [](const std::string& why) { return Reading::missing(why); };
  auto result =
      parsed(root_ / "proc/self/status", parse_process_status, [](const std::string& why) {
        return ProcessMemory{.rss_bytes = Reading::missing(why),
                             .peak_rss_bytes = Reading::missing(why),
                             .major_faults = {},
                             .disk_read_bytes = {}};
      });
  result.major_faults = parsed(root_ / "proc/self/stat", parse_major_faults, reading);
  result.disk_read_bytes = parsed(root_ / "proc/self/io", parse_disk_reads, reading);
  return result;
}

Pressure MemorySampler::pressure() const {
  return parsed(root_ / "proc/pressure/memory", parse_pressure, [](const std::string& why) {
    return Pressure{Reading::missing(why), Reading::missing(why)};
  });
}

CgroupMemory MemorySampler::cgroup() const {
  const auto none = [](const std::string& why) {
    return CgroupMemory{Reading::missing(why), Reading::missing(why)};
  };
  const auto membership = read_file(root_ / "proc/self/cgroup");
  if (!membership.text) return none(membership.reason);
  const auto cgroup = parse_cgroup_path(*membership.text);
  if (!cgroup) return none("no memory cgroup");

  const bool v2 = cgroup->version == 2;
  const fs::path mount = root_ / (v2 ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
  const char* limit_name = v2 ? "memory.max" : "memory.limit_in_bytes";
  const char* usage_name = v2 ? "memory.current" : "memory.usage_in_bytes";
  // The page cache of files read once counts as usage until the limit is reached, then goes first.
  const char* droppable_key = v2 ? "inactive_file " : "total_inactive_file ";
  // Version 1 writes "no limit" as a number near 2^63, version 2 as the word max.
  constexpr std::int64_t kUnlimited = std::int64_t{1} << 60;

  // Inside a container the path is the host's and the mount shows the container's own group at its
  // top: directories that do not exist are skipped. Any ancestor may hold the limit.
  CgroupMemory tightest = none("no limit");
  std::int64_t least_room = 0;
  for (fs::path below = fs::path(cgroup->path).relative_path();; below = below.parent_path()) {
    const fs::path group = mount / below;
    Reading limit = read_number(group / limit_name);
    Reading usage = read_number(group / usage_name);
    if (usage) {
      const auto stat = read_file(group / "memory.stat");
      const auto droppable = number_after(stat.text.value_or(""), droppable_key, 1);
      if (droppable) usage = Reading::of(std::max<std::int64_t>(*usage - *droppable, 0));
      if (!tightest.usage) tightest.usage = usage;
    }
    if (limit && usage && *limit < kUnlimited) {
      const auto room = *limit - *usage;
      if (!tightest.limit || room < least_room) {
        tightest = {.limit = std::move(limit), .usage = std::move(usage)};
        least_room = room;
      }
    }
    if (below.empty()) break;
  }
  return tightest;
}

}  // namespace tandem
