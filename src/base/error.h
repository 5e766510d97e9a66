// The one exception type. Its kind is the exit code; its message says what went wrong, where, what
// was expected, and what to do about it.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "base/exit_code.h"

namespace tandem {

// The parts of an error message. `what` is required; the others are left out when empty.
struct ErrorText {
  std::string what;           // "header length 18446744073709551615 exceeds the file size 1024"
  std::string where = {};     // "model-00001.safetensors", "job.yaml:12: scheduler.page_tokens"
  std::string expected = {};  // "a power of two from 4 to 256"
  std::string remedy = {};    // "download the file again"
};

// Who throws it. An error that the ranks agreed on is thrown by all of them with the same text, and
// only rank 0 prints it.
enum class ErrorScope { kThisRank, kAllRanks };

class Error : public std::runtime_error {
 public:
  Error(ExitCode code, ErrorText text, ErrorScope scope = ErrorScope::kThisRank);

  ExitCode code() const { return code_; }
  const ErrorText& text() const { return text_; }
  ErrorScope scope() const { return scope_; }

 private:
  ExitCode code_;
  ErrorText text_;
  ErrorScope scope_;
};

// Builds "<where>: <what>; expected <expected>; <remedy>".
std::string format_error(const ErrorText& text);

// Broken invariants: always on, throws Error{kInternal} with expression, file and line.
[[noreturn]] void check_failed(const char* expression, const char* file, int line,
                               const std::string& detail);

}  // namespace tandem

#define TANDEM_CHECK(condition, ...)                                                         \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      ::tandem::check_failed(#condition, __FILE__, __LINE__, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
