// The memory plan: what a rank will hold, what its host can give, and whether the one fits into the
// other. The parts are computed by those who own them; nothing here allocates.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "memory/host_memory.h"

namespace tandem {

struct MemoryPart {
  std::string name;  // "weights NVFP4", "kv pages", "process"
  std::int64_t bytes = 0;
};

// A key of the job file that changes how much is needed.
struct MemoryKnob {
  std::string key;               // "scheduler.max_context"
  std::string current;           // "262144"
  std::string suggestion;        // "131072"
  std::int64_t saves_bytes = 0;  // per rank; 0: not known
};

struct RankPlan {
  int rank = 0;
  std::string host;
  // Held in the steady state, except the KV pool when that takes what is left.
  std::vector<MemoryPart> parts;
  // On top of what is loaded so far, the most that loading needs at once (staging, page cache of
  // shards being read). Gone in the steady state, when the KV pool and workspaces exist.
  std::int64_t load_transient_bytes = 0;
  std::vector<std::string> loaded_parts;  // names of the parts that exist at the load peak
  std::vector<MemoryKnob> knobs;

  std::int64_t steady_bytes() const;
  std::int64_t load_peak_bytes() const;
  std::int64_t needed_bytes() const;  // the larger of the two
};

struct HostBudget {
  std::string host;
  std::int64_t available_bytes =
      0;                   // MemAvailable, or the room left under a cgroup limit if smaller
  std::string limited_by;  // "MemAvailable", "cgroup limit"
  std::int64_t reserve_bytes = 0;
  int ranks_on_host = 1;

  // What one rank of this host may use on top of what it holds now; never negative.
  std::int64_t per_rank_bytes() const;
};

// Throws Error{kInternal} if the host does not say how much memory it has.
HostBudget host_budget(const MemorySample& sample, std::string host, std::int64_t reserve_bytes,
                       int ranks_on_host);

// What the process already holds, measured now: libraries, thread stacks, the MPI runtime.
// MemAvailable does not contain it any more, so it is shown but not counted against the budget
// again.
MemoryPart process_baseline(const ProcessMemory& process);
constexpr const char* kProcessPart = "process at start";

// Throws Error{kDoesNotFit} with the table, the missing bytes and the knobs that would make it fit.
void require_fit(const RankPlan& plan, const HostBudget& budget);
// Bytes left for a KV pool of size "auto" once everything else is placed; negative: short by so
// much.
std::int64_t bytes_left(const RankPlan& plan, const HostBudget& budget);

// Parts with sizes and shares, steady state and load peak against the budget.
std::string render_plan(const RankPlan& plan, const HostBudget& budget);

}  // namespace tandem
