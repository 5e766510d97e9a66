// Messages for people, on stderr, with level, time and rank. Rank 0 speaks by default; the others
// only for warnings and errors. A sink can be added (the result file's /log).
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace tandem {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Called once per process before any other thread starts. `quiet` hides kInfo and below.
void log_configure(int rank, bool quiet);
// Receives every message of this process at kInfo and above; pass nullptr to remove.
void log_set_sink(std::function<void(LogLevel, std::string_view)> sink);
void log_message(LogLevel level, std::string_view text);

template <typename... Args>
void log_debug(fmt::format_string<Args...> f, Args&&... args) {
  log_message(LogLevel::kDebug, fmt::format(f, std::forward<Args>(args)...));
}
template <typename... Args>
void log_info(fmt::format_string<Args...> f, Args&&... args) {
  log_message(LogLevel::kInfo, fmt::format(f, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> f, Args&&... args) {
  log_message(LogLevel::kWarning, fmt::format(f, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> f, Args&&... args) {
  log_message(LogLevel::kError, fmt::format(f, std::forward<Args>(args)...));
}

}  // namespace tandem
