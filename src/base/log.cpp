#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>

namespace tandem {
namespace {

struct LogState {
  std::mutex mutex;
  std::shared_ptr<spdlog::logger> logger;
  std::function<void(LogLevel, std::string_view)> sink;
};

LogState& state() {
  static LogState s;
  return s;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

std::shared_ptr<spdlog::logger> make_logger(int rank, bool quiet) {
  auto logger = std::make_shared<spdlog::logger>(
      "tandem", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern(fmt::format("[%H:%M:%SZ %^%l%$ rank {}] %v", rank),
                      spdlog::pattern_time_type::utc);
  logger->set_level(rank != 0 || quiet ? spdlog::level::warn : spdlog::level::info);
  logger->flush_on(spdlog::level::info);
  return logger;
}

}  // namespace

void log_configure(int rank, bool quiet) {
  const std::scoped_lock lock(state().mutex);
  state().logger = make_logger(rank, quiet);
}

void log_set_sink(std::function<void(LogLevel, std::string_view)> sink) {
  const std::scoped_lock lock(state().mutex);
  state().sink = std::move(sink);
}

void log_message(LogLevel level, std::string_view text) {
  const std::scoped_lock lock(state().mutex);
  if (!state().logger) state().logger = make_logger(0, false);
  state().logger->log(to_spdlog(level), text);
  if (state().sink && level >= LogLevel::kInfo) state().sink(level, text);
}

}  // namespace tandem
