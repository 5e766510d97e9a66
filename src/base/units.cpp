#include "base/units.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace tandem {
namespace {

// Splits "12.5 GiB" into 12.5 and "GiB".
std::optional<double> parse_number(std::string_view text, std::string_view& unit) {
  double value = 0;
  const auto* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || !std::isfinite(value) || value < 0) return std::nullopt;
  unit = std::string_view(rest, static_cast<std::size_t>(end - rest));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  return value;
}

}  // namespace

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  std::string_view unit;
  const auto value = parse_number(text, unit);
  if (!value) return std::nullopt;
  double scale = 0;
  if (unit.empty() || unit == "B") scale = 1;
  if (unit == "KiB") scale = 1024.0;
  if (unit == "MiB") scale = 1024.0 * 1024;
  if (unit == "GiB") scale = 1024.0 * 1024 * 1024;
  if (unit == "TiB") scale = 1024.0 * 1024 * 1024 * 1024;
  const double bytes = *value * scale;
  if (scale == 0 || bytes > 9.0e18) return std::nullopt;
  return static_cast<std::int64_t>(bytes);
}

std::optional<double> parse_duration_s(std::string_view text) {
  std::string_view unit;
  const auto value = parse_number(text, unit);
  if (!value) return std::nullopt;
  if (unit == "ms") return *value / 1000;
  if (unit == "s") return *value;
  if (unit == "m") return *value * 60;
  if (unit == "h") return *value * 3600;
  return std::nullopt;
}

std::string format_bytes(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (std::abs(value) >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (seconds < 60) return fmt::format("{:.2f} s", seconds);
  const auto total = static_cast<std::int64_t>(std::llround(seconds));
  const auto h = total / 3600;
  const auto m = total / 60 % 60;
  const auto s = total % 60;
  return h ? fmt::format("{}h {:02}m {:02}s", h, m, s) : fmt::format("{}m {:02}s", m, s);
}

}  // namespace tandem
