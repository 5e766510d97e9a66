// Two helpers against waiting for ever on a library that does not come back: a thread that asks it
// now and then whether it has failed, and a limit for a single call. Neither knows NCCL.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/error.h"

namespace tandem {

// Told of a failure that no return value can carry, on a thread of its own while the main thread
// may be blocked: RankGuard::fail. It may end the process.
using FailureHandler = std::function<void(const ErrorText&, ExitCode)>;

// Ends the process with the message: for callers without a guard.
void end_process(const ErrorText& text, ExitCode code);

class CommWatch {
 public:
  // Calls `probe` every interval_s until it returns what went wrong; then `on_failure` once with
  // it, and no more.
  CommWatch(std::function<std::optional<ErrorText>()> probe, FailureHandler on_failure,
            double interval_s = 0.1);
  ~CommWatch();
  CommWatch(const CommWatch&) = delete;
  CommWatch& operator=(const CommWatch&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

class TimeLimit {
 public:
  // Calls `on_timeout` once if the object still exists after limit_s.
  TimeLimit(double limit_s, std::function<void()> on_timeout);
  ~TimeLimit();
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace tandem
