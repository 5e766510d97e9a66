// A file opened for reading at given offsets: exact reads, size and time from the open descriptor,
// page cache advice. Owns the descriptor and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace tandem {

class ReadOnlyFile {
 public:
  // Throws Error{kConfiguration} if `path` cannot be opened or is not a regular file.
  explicit ReadOnlyFile(const std::filesystem::path& path);
  ~ReadOnlyFile();
  ReadOnlyFile(ReadOnlyFile&& other) noexcept;
  ReadOnlyFile& operator=(ReadOnlyFile&& other) noexcept;
  ReadOnlyFile(const ReadOnlyFile&) = delete;
  ReadOnlyFile& operator=(const ReadOnlyFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }       // at the time of opening
  std::int64_t mtime_ns() const { return mtime_ns_; }  // since the epoch

  // Fills dst[0, count) from `offset`, or throws Error{kInternal}: an early end of the file means
  // that it shrank after it was checked.
  void read_exact(void* dst, std::size_t count, std::uint64_t offset) const;
  // Gives the page cache of [offset, offset + count) back, widened to whole pages. Advice only.
  void drop_page_cache(std::uint64_t offset, std::uint64_t count) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  std::uint64_t bytes_ = 0;
  std::int64_t mtime_ns_ = 0;
};

}  // namespace tandem
