#include "base/error.h"

namespace tandem {

std::string format_error(const ErrorText& text) {
  std::string out;
  if (!text.where.empty()) out += text.where + ": ";
  out += text.what;
  if (!text.expected.empty()) out += "; expected " + text.expected;
  if (!text.remedy.empty()) out += "; " + text.remedy;
  return out;
}

Error::Error(ExitCode code, ErrorText text, ErrorScope scope)
    : std::runtime_error(format_error(text)), code_(code), text_(std::move(text)), scope_(scope) {}

void check_failed(const char* expression, const char* file, int line, const std::string& detail) {
  throw Error(ExitCode::kInternal,
              {.what = fmt::format("internal check failed: {}{}{}", expression,
                                   detail.empty() ? "" : ": ", detail),
               .where = fmt::format("{}:{}", file, line),
               .expected = "",
               .remedy = "this is a defect in tandem; please report it with the job file"});
}

}  // namespace tandem
