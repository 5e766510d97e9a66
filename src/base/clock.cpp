#include "base/clock.h"

#include <chrono>
#include <ctime>

namespace tandem {
namespace {

std::string utc_now(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  const auto n = std::strftime(text, sizeof text, format, &parts);
  return std::string(text, n);
}

}  // namespace

double monotonic_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string utc_now_iso8601() { return utc_now("%Y-%m-%dT%H:%M:%SZ"); }
std::string utc_now_compact() { return utc_now("%Y%m%dT%H%M%SZ"); }

}  // namespace tandem
