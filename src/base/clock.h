// Time: monotonic seconds for durations, UTC for the record. Never local time.
#pragma once

#include <string>

namespace tandem {

// Seconds of CLOCK_MONOTONIC; only differences mean anything.
double monotonic_s();
// "2026-08-01T12:34:56Z"
std::string utc_now_iso8601();
// "20260801T123456Z", for file names.
std::string utc_now_compact();

}  // namespace tandem
