#include "parallel/nccl_log_capture.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "parallel/host_info.h"

namespace tandem {
namespace {

constexpr const char* kVariables[] = {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"};
// A user who asks for a line per collective would fill the memory overnight.
constexpr std::int64_t kKeptBytes = std::int64_t{4} << 20;

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

bool equal_ignoring_case(std::string_view a, std::string_view upper) {
  return std::equal(a.begin(), a.end(), upper.begin(), upper.end(),
                    [](char c, char u) { return (c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c) == u; });
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(fd, text.data(), text.size());
    if (written <= 0) return;  // a full disk must not end the job for the sake of a log
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

NcclVerbosity nccl_verbosity(std::string_view nccl_debug) {
  if (equal_ignoring_case(nccl_debug, "VERSION")) return NcclVerbosity::kVersion;
  if (equal_ignoring_case(nccl_debug, "WARN")) return NcclVerbosity::kWarnings;
  for (const char* level : {"INFO", "ABORT", "TRACE"}) {
    if (equal_ignoring_case(nccl_debug, level)) return NcclVerbosity::kEverything;
  }
  return NcclVerbosity::kNothing;
}

std::string nccl_subsystems(std::string_view user) {
  std::string all = "INIT,NET,P2P,SHM,ENV";
  if (!user.empty() && !user.starts_with('^')) all += "," + std::string(user);
  return all;
}

bool wanted_by(NcclVerbosity verbosity, std::string_view line) {
  const bool version = line.find("NCCL version ") != std::string_view::npos;
  switch (verbosity) {
    case NcclVerbosity::kNothing:
      return false;
    case NcclVerbosity::kVersion:
      return version;
    case NcclVerbosity::kWarnings:
      return version || line.find("NCCL WARN ") != std::string_view::npos;
    case NcclVerbosity::kEverything:
      break;
  }
  return true;
}

std::string expand_nccl_file(std::string_view pattern, std::string_view host, long pid) {
  std::string path;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (pattern[i] != '%' || (next != 'h' && next != 'p' && next != '%')) {
      path += pattern[i];
      continue;
    }
    ++i;
    if (next == 'h') path += host.substr(0, host.find('.'));
    if (next == 'p') path += std::to_string(pid);
    if (next == '%') path += '%';
  }
  return path;
}

NcclLogCapture::NcclLogCapture() : file_(memfd_create("tandem-nccl-log", MFD_CLOEXEC)) {
  for (const char* name : kVariables) saved_.emplace_back(name, variable(name));
  if (!file_) {
    log_warning("no file in memory for NCCL's log: {}; its paths stay unknown",
                std::strerror(errno));
    return;
  }
  wanted_ = nccl_verbosity(saved_[0].second.value_or(""));
  if (saved_[2].second) {
    // Like NCCL, which takes the host's name up to the first dot.
    user_file_ = expand_nccl_file(*saved_[2].second, host_name(), getpid());
  }
  point_nccl_here();
}

NcclLogCapture::~NcclLogCapture() {
  try {
    forward();
  } catch (const std::exception&) {
    // Only the end of a log is lost.
  }
}

void NcclLogCapture::point_nccl_here() {
  const auto& user_level = saved_[0].second;
  const bool trace = user_level && equal_ignoring_case(*user_level, "TRACE");
  setenv("NCCL_DEBUG", trace ? "TRACE" : "INFO", 1);
  setenv("NCCL_DEBUG_SUBSYS", nccl_subsystems(saved_[1].second.value_or("")).c_str(), 1);
  // NCCL opens it by name, as a file of its own.
  setenv("NCCL_DEBUG_FILE", fmt::format("/proc/self/fd/{}", file_.get()).c_str(), 1);
}

void NcclLogCapture::restore_environment() {
  for (const auto& [name, value] : saved_) {
    if (value) {
      setenv(name, value->c_str(), 1);
    } else {
      unsetenv(name);
    }
  }
}

std::int64_t NcclLogCapture::size() const {
  struct stat status {};
  return file_ && fstat(file_.get(), &status) == 0 ? std::int64_t{status.st_size} : 0;
}

std::string NcclLogCapture::text(std::int64_t from) const {
  std::string text(static_cast<std::size_t>(std::max<std::int64_t>(0, size() - from)), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const auto got = pread(file_.get(), text.data() + done, text.size() - done,
                           from + static_cast<std::int64_t>(done));
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
  }
  text.resize(done);
  return text;
}

void NcclLogCapture::forward() {
  const std::scoped_lock lock(mutex_);
  std::string fresh = text(forwarded_);
  fresh.resize(fresh.rfind('\n') + 1);  // whole lines; none: npos + 1 == 0
  forwarded_ += static_cast<std::int64_t>(fresh.size());
  std::string out;
  for (std::string_view left = fresh; !left.empty();) {
    const auto line = left.substr(0, left.find('\n') + 1);
    if (wanted_by(wanted_, line)) out += line;
    left.remove_prefix(line.size());
  }
  if (!out.empty()) {
    if (!user_ && !user_file_.empty()) {
      user_ = FileDescriptor(
          ::open(user_file_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
      if (!user_) {
        log_warning("NCCL_DEBUG_FILE {}: {}; NCCL's messages go to stderr", user_file_,
                    std::strerror(errno));
        user_file_.clear();
      }
    }
    write_all(user_ ? user_.get() : STDERR_FILENO, out);
  }
  if (forwarded_ - dropped_ > kKeptBytes) {
    // The file keeps its size, so that places in it stay valid; the dropped part reads as zeros.
    fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, dropped_,
              forwarded_ - dropped_);
    dropped_ = forwarded_;
  }
}

}  // namespace tandem
