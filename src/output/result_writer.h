// The result file of a run: the only code that writes HDF5 while a job runs. The visible file is
// always a complete, closed HDF5 file: a flush copies it to FILE.tmp, appends there, syncs, and
// renames over it, so a kill at any point leaves the last complete file. HDF5 is used by one thread
// at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/exit_code.h"
#include "output/passport.h"
#include "output/records.h"
#include "output/resume.h"

namespace tandem {

enum class ExistingFile { kRefuse, kOverwrite, kResume };
// When the first visible file appears: with the writer, or at publish(), when nothing can be
// refused any more. Until then an existing file stays as it is, and a writer that goes leaves no
// trace.
enum class FirstFile { kAtOnce, kAtPublish };

struct WriterOptions {
  std::filesystem::path file;
  ExistingFile existing = ExistingFile::kRefuse;
  FirstFile first_file = FirstFile::kAtOnce;
  double flush_every_s = 10;
  std::size_t max_pending_bytes = std::size_t{256} << 20;  // rows waiting for a flush
  // Ranks that make the same tokens together (tensor parallelism). The check that steps and
  // requests count the same tokens takes the steps of every ranks_per_replica-th rank.
  int ranks_per_replica = 1;
  Passport passport;
  RunFacts facts;
  // Called with the name of each system or HDF5 step of a flush before it happens. Fault-injection
  // tests end the process or throw here.
  std::function<void(std::string_view)> before_step;
};

class ResultWriter {
 public:
  // Takes FILE.lock, checks the target and writes the first file (passport, empty datasets, exit
  // status "running"), all before a model needs to be loaded. Creates missing parent folders.
  // Throws Error{kConfiguration} when the file exists (and existing is kRefuse), is locked by
  // another process, is a directory, or cannot be written. With kResume call plan_resume() first.
  explicit ResultWriter(WriterOptions options);
  // Writes what is pending, if the file is visible; never throws. Without finish() the exit status
  // stays "running".
  ~ResultWriter();
  ResultWriter(const ResultWriter&) = delete;
  ResultWriter& operator=(const ResultWriter&) = delete;

  // With FirstFile::kAtPublish, once: makes the first file visible and lets flushes begin; rows
  // submitted before wait in memory. Throws Error if that fails.
  void publish();

  // Thread-safe; no I/O. Records that break an invariant (accepted > proposed, arrays of unequal
  // length, times out of order) throw Error{kInternal} here, before they can reach the file. When
  // max_pending_bytes wait, blocks until a flush made room, and throws Error{kInternal} if that
  // fails.
  void submit(RequestRecord&& record);
  void submit(const StepRecord& record);
  void submit(const MemoryRow& sample);
  void submit(const PowerSample& sample);
  void submit(const CanaryRecord& record);
  void submit(const LogEvent& event);
  void submit(const GroupRecord& group);

  // Asks for a flush and waits for it, at most `timeout`. False: not written in time (or it failed,
  // which is logged). For the failure guard; callable from any thread.
  bool flush_now(std::chrono::milliseconds timeout);

  // Attributes learned after the start (transport evidence, load figures); written at the next
  // flush.
  void add_to_passport(const Passport& more);

  // Last flush with /summary, end time (UTC now) and exit status; releases the lock. Throws
  // Error{kInternal} if the file cannot be written (the previous one is untouched) or if the step
  // counters do not add up to the tokens written (the file is written then).
  void finish(ExitCode exit_code);

  std::int64_t session() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
