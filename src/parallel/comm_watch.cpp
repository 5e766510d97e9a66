#include "parallel/comm_watch.h"

#include <unistd.h>

#include <chrono>
#include <utility>

#include "base/log.h"

namespace tandem {
namespace {

using Seconds = std::chrono::duration<double>;

}  // namespace

void end_process(const ErrorText& text, ExitCode code) {
  log_error("{}", format_error(text));
  _exit(static_cast<int>(code));
}

CommWatch::CommWatch(std::function<std::optional<ErrorText>()> probe, FailureHandler on_failure,
                     double interval_s)
    : thread_([this, probe = std::move(probe), on_failure = std::move(on_failure), interval_s] {
        std::unique_lock lock(mutex_);
        while (!changed_.wait_for(lock, Seconds(interval_s), [this] { return stop_; })) {
          lock.unlock();
          if (const auto failure = probe()) {
            on_failure(*failure, ExitCode::kRankFailure);
            return;
          }
          lock.lock();
        }
      }) {}

CommWatch::~CommWatch() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

TimeLimit::TimeLimit(double limit_s, std::function<void()> on_timeout)
    : thread_([this, limit_s, on_timeout = std::move(on_timeout)] {
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, Seconds(limit_s), [this] { return done_; })) return;
        lock.unlock();
        on_timeout();
      }) {}

TimeLimit::~TimeLimit() {
  {
    const std::scoped_lock lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace tandem
