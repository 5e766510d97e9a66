// Parsing and printing of byte sizes and durations, as users write them in job files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tandem {

// "12GiB", "512 MiB", "64KiB", "4096" (bytes). Nothing else: "12GB" is ambiguous and refused.
std::optional<std::int64_t> parse_bytes(std::string_view text);
// "60s", "5m", "2h", "0.5s", "250ms". A bare number is refused.
std::optional<double> parse_duration_s(std::string_view text);

std::string format_bytes(std::int64_t bytes);  // "12.5 GiB"
std::string format_duration(double seconds);   // "1h 02m 03s", "4.21 s"

}  // namespace tandem
