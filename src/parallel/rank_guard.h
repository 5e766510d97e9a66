// Notices that a rank failed, hangs or is gone, and ends the whole job with one message and one
// exit code. Works outside MPI, whose calls block for ever once a peer is missing: a thread per
// rank and a TCP connection from each rank to rank 0. What is saved on failure is the caller's.
//
// What counts as a failure: a connection that closes without goodbye (a dead process, seen within
// milliseconds), silence for lost_after_s (a dead host or a stopped process), a report by the rank
// itself, no step finished for stall_timeout_s while watched, and the loss of mpirun.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "parallel/host_comm.h"
#include "parallel/step_beacon.h"

namespace tandem {

struct Failure {
  int rank = 0;
  std::string host;
  long pid = 0;
  std::uint64_t step = 0;  // as last heard, at most a heartbeat old
  std::string operation;
  ExitCode code = ExitCode::kRankFailure;
  std::string message;  // complete, one line
};

struct RankGuardOptions {
  double heartbeat_s = 1.0;
  double lost_after_s = 8.0;
  double stall_timeout_s = 60.0;
  // How long on_failure may take before the process ends without it.
  double save_deadline_s = 5.0;
  // How long a failed rank waits for rank 0 to have saved. mpirun kills everyone soon after the
  // first rank exits, so that rank must not go first.
  double linger_s = 8.0;
  // Rank 0, on a thread of its own while the main thread may hang in MPI: saves what is finished.
  std::function<void(const Failure&)> on_failure;
  // Rank 0, on the guard thread: what send_to_root() sent. Must not block.
  std::function<void(int rank, std::uint32_t kind, std::string bytes)> on_message;
};

class RankGuard {
 public:
  // Collective. The beacon must outlive the guard. Throws Error{kTransport}, on all ranks alike, if
  // some rank cannot connect to rank 0.
  RankGuard(const HostComm& world, StepBeacon& beacon, RankGuardOptions options);
  // Without goodbye() the other ranks take the end of this one for a failure.
  ~RankGuard();
  RankGuard(const RankGuard&) = delete;
  RankGuard& operator=(const RankGuard&) = delete;

  // Steps are expected to finish only between these; loading, the end of the job and the time after
  // a replica's last request are not watched. The clock starts at begin_watch().
  void begin_watch();
  void end_watch();

  // This rank cannot go on. Tells rank 0, waits until it has saved, and ends the process with
  // `code` (so do all other ranks).
  [[noreturn]] void fail(const ErrorText& text, ExitCode code);
  [[noreturn]] void fail(const Error& error) { fail(error.text(), error.code()); }

  // Hands a small message to rank 0's on_message. Never blocks; false if the queue is full and the
  // message was dropped.
  bool send_to_root(std::uint32_t kind, std::string bytes);

  // The orderly end, called by every rank when its work is done (rank 0: when all is written).
  // Returns when the others have said goodbye too, so that nobody's exit code makes mpirun kill a
  // rank that is still saving; an exit without goodbye is a failure until then. Watching ends with
  // it.
  void goodbye();

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace tandem
