// Makes NCCL's account of its connections readable by this process, whatever the user set in
// NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE, and passes on to the user what those asked
// for. NCCL reads them once a process, with its first message: one capture a process, made before
// the first call of NCCL. What the text means is nccl_log's.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parallel/guard_link.h"

namespace tandem {

// What the user wants to see of NCCL's messages.
enum class NcclVerbosity { kNothing, kVersion, kWarnings, kEverything };

class NcclLogCapture {
 public:
  // Points NCCL at a file in memory of this process: nothing on a disk, nothing left over when the
  // process is killed. Not thread-safe with getenv() of other threads. If there is no such file
  // NCCL keeps the user's settings and text() stays empty, so that nothing is proven.
  NcclLogCapture();
  ~NcclLogCapture();
  NcclLogCapture(const NcclLogCapture&) = delete;
  NcclLogCapture& operator=(const NcclLogCapture&) = delete;

  // Gives the environment back, once NCCL has read it.
  void restore_environment();

  // Bytes written so far, and the text from there on.
  std::int64_t size() const;
  std::string text(std::int64_t from) const;

  // Writes the new lines that the user asked for to the user's file (NCCL_DEBUG_FILE with %h and
  // %p) or else to stderr, and drops them here when they are many. Any thread, now and then.
  void forward();

 private:
  void point_nccl_here();

  FileDescriptor file_;
  // As the user had them; empty: not set.
  std::vector<std::pair<const char*, std::optional<std::string>>> saved_;
  NcclVerbosity wanted_ = NcclVerbosity::kNothing;
  std::string user_file_;  // expanded; empty: stderr
  std::mutex mutex_;       // of what follows
  FileDescriptor user_;
  std::int64_t forwarded_ = 0;
  std::int64_t dropped_ = 0;
};

NcclVerbosity nccl_verbosity(std::string_view nccl_debug);
// The subsystems to ask for so that the connections are among them: "INIT,NET,P2P,SHM,ENV" and the
// user's own. An inverted list ("^INIT") cannot be added to and is left out.
std::string nccl_subsystems(std::string_view user);
// Whether the user wants this line.
bool wanted_by(NcclVerbosity verbosity, std::string_view line);
// "log.%h.%p" -> "log.spark1.4711"
std::string expand_nccl_file(std::string_view pattern, std::string_view host, long pid);

}  // namespace tandem
