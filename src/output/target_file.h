// The result file as a thing on disk: its lock, its temporary, and the exchange of one for the
// other. Knows nothing of HDF5. Between begin() and publish() the temporary belongs to the caller.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace tandem {

// Holds FILE.lock (flock, so it dies with the process) and removes it at the end.
class FileLock {
 public:
  // Throws Error{kConfiguration} naming the holder when another process (or writer) has it.
  explicit FileLock(const std::filesystem::path& file);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  bool try_lock();

  std::filesystem::path path_;
  int fd_ = -1;
};

class TargetFile {
 public:
  using StepHook = std::function<void(std::string_view)>;

  // Creates missing parents, takes the lock, removes a temporary left by a killed process.
  // Throws Error{kConfiguration}: path is a directory, parent missing or not writable, locked.
  TargetFile(std::filesystem::path file, StepHook before_step);

  const std::filesystem::path& path() const { return file_; }
  const std::filesystem::path& temporary() const { return temporary_; }
  bool exists() const;

  // Makes the temporary: empty, or a copy of the file, with room for `growth_bytes` more reserved
  // on the disk. HDF5 does not survive a write that fails half-way, so a full disk has to show
  // here.
  void begin_empty(std::int64_t growth_bytes);
  void begin_copy(std::int64_t growth_bytes);
  // Syncs the temporary, renames it over the file, syncs the folder.
  void publish();
  // Removes the temporary; never throws.
  void discard() noexcept;

 private:
  void before(std::string_view step) const {
    if (before_step_) before_step_(step);
  }
  void reserve(int fd, std::int64_t from, std::int64_t growth_bytes) const;

  std::filesystem::path file_;
  std::filesystem::path temporary_;
  StepHook before_step_;
  std::unique_ptr<FileLock> lock_;
};

}  // namespace tandem
