#include "checkpoint/read_only_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace tandem {
namespace {

// Linux transfers at most 0x7ffff000 bytes a call.
constexpr std::size_t kMaxReadBytes = std::size_t{1} << 30;

}  // namespace

ReadOnlyFile::ReadOnlyFile(const std::filesystem::path& path) : path_(path) {
  // Until the name is known to be a regular file: a FIFO must not block the open.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) {
    throw Error(ExitCode::kConfiguration, {.what = fmt::format("cannot open: {}", strerror(errno)),
                                           .where = path.string(),
                                           .expected = "a readable file",
                                           .remedy = "check the path and its permissions"});
  }
  struct stat status {};
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd_);
    fd_ = -1;
    throw Error(ExitCode::kConfiguration, {.what = "is not a regular file",
                                           .where = path.string(),
                                           .expected = "a readable file",
                                           .remedy = "check the path"});
  }
  bytes_ = static_cast<std::uint64_t>(status.st_size);
  mtime_ns_ = std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

ReadOnlyFile::~ReadOnlyFile() {
  if (fd_ >= 0) ::close(fd_);
}

ReadOnlyFile::ReadOnlyFile(ReadOnlyFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      bytes_(other.bytes_),
      mtime_ns_(other.mtime_ns_) {}

ReadOnlyFile& ReadOnlyFile::operator=(ReadOnlyFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  std::swap(mtime_ns_, other.mtime_ns_);
  return *this;
}

void ReadOnlyFile::read_exact(void* dst, std::size_t count, std::uint64_t offset) const {
  auto* out = static_cast<char*>(dst);
  std::size_t done = 0;
  while (done < count) {
    const ssize_t n = ::pread(fd_, out + done, std::min(count - done, kMaxReadBytes),
                              static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      throw Error(ExitCode::kInternal,
                  {.what = fmt::format("read error at byte {}: {}", offset + done, strerror(errno)),
                   .where = path_.string(),
                   .expected = {},
                   .remedy = "check the disk or the network file system"});
    }
    if (n == 0) {
      throw Error(ExitCode::kInternal,
                  {.what = fmt::format("ends at byte {} while reading {} bytes from {}",
                                       offset + done, count, offset),
                   .where = path_.string(),
                   .expected = fmt::format("{} bytes, its size when it was opened", bytes_),
                   .remedy = "do not change a checkpoint while a job reads it"});
    }
    done += static_cast<std::size_t>(n);
  }
}

void ReadOnlyFile::drop_page_cache(std::uint64_t offset, std::uint64_t count) const {
  // The kernel leaves partly covered pages alone, so they must be covered whole.
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = offset / page * page;
  const std::uint64_t end = (offset + count + page - 1) / page * page;
  (void)::posix_fadvise(fd_, static_cast<off_t>(begin), static_cast<off_t>(end - begin),
                        POSIX_FADV_DONTNEED);
}

}  // namespace tandem
