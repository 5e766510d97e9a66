#include "output/target_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/units.h"

namespace tandem {
namespace {

constexpr std::int64_t kLowSpaceBytes = std::int64_t{1} << 30;

class Descriptor {
 public:
  Descriptor(const std::filesystem::path& path, int flags)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string remedy_for(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free space on that file system, or write to another one (output.file, --output)";
    case EROFS:
      return "the file system is read-only: choose another output.file or --output";
    case EACCES:
    case EPERM:
      return "check the permissions of the folder, or choose another output.file or --output";
    case EFBIG:
      return "raise the file size limit (ulimit -f), or choose another file system";
    default:
      return "check the file system, or choose another output.file or --output";
  }
}

[[noreturn]] void fail(ExitCode code, std::string_view what, const std::filesystem::path& where,
                       int error) {
  throw Error(code, {.what = fmt::format("cannot {}: {}", what, std::strerror(error)),
                     .where = where.string(),
                     .remedy = remedy_for(error)});
}

std::int64_t size_of(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? info.st_size : 0;
}

void write_all(int fd, const char* data, std::size_t bytes, const std::filesystem::path& path) {
  while (bytes > 0) {
    const auto written = ::write(fd, data, bytes);
    if (written < 0) {
      if (errno == EINTR) continue;
      fail(ExitCode::kInternal, "write the temporary", path, errno);
    }
    data += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

// copy_file_range shares extents where the file system can; elsewhere plain reads and writes.
void copy_bytes(int from, int to, const std::filesystem::path& source,
                const std::filesystem::path& target) {
  auto left = size_of(from);
  while (left > 0) {
    const auto copied =
        ::copy_file_range(from, nullptr, to, nullptr, static_cast<std::size_t>(left), 0);
    if (copied < 0 && errno == EINTR) continue;
    if (copied < 0 && errno == ENOSPC) {
      fail(ExitCode::kInternal, "copy the result file", target, errno);
    }
    if (copied <= 0) break;  // EXDEV, EINVAL, ENOSYS, ...: the loop below goes on from here
    left -= copied;
  }
  std::vector<char> buffer(std::size_t{1} << 20);
  while (left > 0) {
    const auto got = ::read(from, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail(ExitCode::kInternal, "read the result file", source, got < 0 ? errno : EIO);
    write_all(to, buffer.data(), static_cast<std::size_t>(got), target);
    left -= got;
  }
}

}  // namespace

FileLock::FileLock(const std::filesystem::path& file) : path_(file.string() + ".lock") {
  while (!try_lock()) {
  }
  const auto holder = fmt::format("{}\n", ::getpid());
  if (::ftruncate(fd_, 0) != 0 ||
      ::pwrite(fd_, holder.data(), holder.size(), 0) != static_cast<ssize_t>(holder.size())) {
    log_debug("{}: the holder's process id could not be noted", path_.string());
  }
}

// False: the holder removed the file between our open and our lock; the new one must be taken.
bool FileLock::try_lock() {
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) fail(ExitCode::kConfiguration, "create the lock file", path_, errno);
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    if (error == EWOULDBLOCK) {
      std::array<char, 32> text{};
      const auto got = ::pread(fd_, text.data(), text.size() - 1, 0);
      std::string holder(text.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
      while (!holder.empty() && holder.back() == '\n') holder.pop_back();
      ::close(std::exchange(fd_, -1));
      throw Error(
          ExitCode::kConfiguration,
          {.what = holder.empty() ? "another process is writing this result"
                                  : fmt::format("process {} is writing this result", holder),
           .where = path_.string(),
           .remedy = "wait for it to end, or choose another output.file or --output"});
    }
    // A file system without locks must not keep people from working; say what is lost.
    log_warning("{}: no locking here ({}); do not start a second job on this file", path_.string(),
                std::strerror(error));
    return true;
  }
  struct stat ours {};
  struct stat named {};
  if (::fstat(fd_, &ours) == 0 && ::stat(path_.c_str(), &named) == 0 &&
      ours.st_ino == named.st_ino && ours.st_dev == named.st_dev) {
    return true;
  }
  ::close(std::exchange(fd_, -1));
  return false;
}

FileLock::~FileLock() {
  if (fd_ < 0) return;
  ::unlink(path_.c_str());  // before the lock goes, so that nobody else's file is removed
  ::close(fd_);
}

TargetFile::TargetFile(std::filesystem::path file, StepHook before_step)
    : file_(std::move(file)),
      temporary_(file_.string() + ".tmp"),
      before_step_(std::move(before_step)) {
  std::error_code error;
  if (std::filesystem::is_directory(file_, error)) {
    throw Error(ExitCode::kConfiguration, {.what = "is a folder",
                                           .where = file_.string(),
                                           .expected = "the name of a file to write",
                                           .remedy = "name a file in output.file or --output"});
  }
  const auto folder = file_.has_parent_path() ? file_.parent_path() : std::filesystem::path(".");
  std::filesystem::create_directories(folder, error);
  if (error) fail(ExitCode::kConfiguration, "create the folder", folder, error.value());
  lock_ = std::make_unique<FileLock>(file_);
  discard();
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) == 0) {
    const auto free_bytes = static_cast<std::int64_t>(space.f_bavail * space.f_frsize);
    if (free_bytes < kLowSpaceBytes) {
      log_warning("{}: only {} free for results", folder.string(), format_bytes(free_bytes));
    }
  }
}

bool TargetFile::exists() const {
  struct stat info {};
  return ::lstat(file_.c_str(), &info) == 0;
}

void TargetFile::reserve(int fd, std::int64_t from, std::int64_t growth_bytes) const {
  before("reserve");
  while (::fallocate(fd, 0, from, growth_bytes) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL) return;  // cannot promise here
    fail(ExitCode::kInternal, fmt::format("reserve {} for new rows", format_bytes(growth_bytes)),
         file_, errno);
  }
}

void TargetFile::begin_empty(std::int64_t growth_bytes) {
  before("create");
  const Descriptor fd(temporary_, O_RDWR | O_CREAT | O_TRUNC);
  if (fd.get() < 0) fail(ExitCode::kInternal, "create the temporary", temporary_, errno);
  reserve(fd.get(), 0, growth_bytes);
}

void TargetFile::begin_copy(std::int64_t growth_bytes) {
  before("copy");
  const Descriptor from(file_, O_RDONLY);
  if (from.get() < 0) fail(ExitCode::kInternal, "open the result file", file_, errno);
  const Descriptor to(temporary_, O_RDWR | O_CREAT | O_TRUNC);
  if (to.get() < 0) fail(ExitCode::kInternal, "create the temporary", temporary_, errno);
  copy_bytes(from.get(), to.get(), file_, temporary_);
  reserve(to.get(), size_of(to.get()), growth_bytes);
}

void TargetFile::publish() {
  before("sync");
  {
    const Descriptor fd(temporary_, O_RDONLY);
    if (fd.get() < 0 || ::fsync(fd.get()) != 0) {
      fail(ExitCode::kInternal, "sync the temporary", temporary_, errno);
    }
  }
  before("rename");
  if (::rename(temporary_.c_str(), file_.c_str()) != 0) {
    fail(ExitCode::kInternal, "put the new result in place", file_, errno);
  }
  before("sync folder");
  const auto folder = file_.has_parent_path() ? file_.parent_path() : std::filesystem::path(".");
  const Descriptor fd(folder, O_RDONLY | O_DIRECTORY);
  // The rename is done; some file systems cannot sync a folder, and the data is safe already.
  if (fd.get() >= 0 && ::fsync(fd.get()) != 0 && errno != EINVAL) {
    log_warning("{}: cannot sync the folder: {}", folder.string(), std::strerror(errno));
  }
  before("published");
}

void TargetFile::discard() noexcept { ::unlink(temporary_.c_str()); }

}  // namespace tandem
