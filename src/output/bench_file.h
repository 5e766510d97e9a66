// The result file of `tandem bench`: written once, at the end, beside a lock and a temporary as the
// file of a run (target_file.h).
#pragma once

#include <filesystem>

#include "base/exit_code.h"
#include "output/bench_records.h"
#include "output/target_file.h"

namespace tandem {

class BenchFile {
 public:
  // Checks the target before anything is measured: takes FILE.lock, creates missing parents and the
  // temporary. Throws Error{kConfiguration} when the file exists (unless `overwrite`), is locked by
  // another process, is a directory, or cannot be written.
  BenchFile(std::filesystem::path file, bool overwrite);
  ~BenchFile();  // without write() nothing is left
  BenchFile(const BenchFile&) = delete;
  BenchFile& operator=(const BenchFile&) = delete;

  // Writes the contents with end time and exit status and makes the file visible. Throws Error if
  // that fails; an existing file is untouched then.
  void write(const BenchContents& contents, ExitCode exit_code);

 private:
  void refuse_existing() const;

  bool overwrite_;
  TargetFile target_;
};

// False also for what is no HDF5 file.
bool is_bench_file(const std::filesystem::path& file);
// Throws Error{kConfiguration} about the file if it is damaged or of a later version.
BenchContents read_bench_file(const std::filesystem::path& file);

}  // namespace tandem
