// Process exit codes: the contract between a job script and this program.
#pragma once

namespace tandem {

enum class ExitCode : int {
  kDone = 0,
  kInternal = 1,        // a defect, or an I/O failure with no code of its own
  kConfiguration = 2,   // usage, job file, checkpoint, output path
  kPrompts = 3,         // prompt batch file
  kDoesNotFit = 4,      // memory plan
  kTransport = 5,       // transport policy
  kRankFailure = 6,     // rank lost, stalled, or results diverged between ranks
  kMemoryWatchdog = 7,  // stopped before memory ran out
  kSomeFailed = 8,      // finished, but some requests failed
  kInterrupted = 130,   // SIGINT or SIGTERM
};

}  // namespace tandem
