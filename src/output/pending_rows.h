// Rows on their way to the file: what was submitted since the last flush.
#pragma once

#include <cstddef>
#include <iterator>
#include <vector>

#include "output/passport.h"
#include "output/records.h"

namespace tandem {

struct PendingRows {
  std::vector<RequestRecord> requests;
  std::vector<StepRecord> steps;
  std::vector<MemoryRow> memory;
  std::vector<PowerSample> power;
  std::vector<CanaryRecord> canary;
  std::vector<LogEvent> log;
  std::size_t bytes = 0;  // about what they hold

  bool empty() const {
    return requests.empty() && steps.empty() && memory.empty() && power.empty() && canary.empty() &&
           log.empty();
  }
  // Puts `later` behind these rows: a batch that could not be written goes back in front.
  void append(PendingRows&& later) {
    const auto move_behind = [](auto& into, auto& from) {
      into.insert(into.end(), std::make_move_iterator(from.begin()),
                  std::make_move_iterator(from.end()));
    };
    move_behind(requests, later.requests);
    move_behind(steps, later.steps);
    move_behind(memory, later.memory);
    move_behind(power, later.power);
    move_behind(canary, later.canary);
    move_behind(log, later.log);
    bytes += later.bytes;
  }
};

inline std::size_t bytes_of(const RequestRecord& r) {
  return sizeof(r) + r.prompt_ids.size() * 4 + r.completion_ids.size() * (4 + 8 + 8 + 8 + 8) +
         r.draft_proposed.size() * 16 + r.prompt_text.size() + r.completion_text.size() +
         r.tags.size() + r.error_text.size();
}
inline std::size_t bytes_of(const LogEvent& event) { return sizeof(event) + event.text.size(); }
template <class Row>
std::size_t bytes_of(const Row& row) {
  return sizeof(row);
}

}  // namespace tandem
