// The memory plan of one rank: the parts counted by the same constructors that later take them, and
// a KV pool sized to what is left or asked for.
#pragma once

#include <cstdint>
#include <string>

#include "engine/device_program.h"
#include "engine/engine_limits.h"
#include "memory/budget.h"
#include "memory/part_allocator.h"

namespace tandem {

struct MemoryPlan {
  EngineLimits limits;       // with the number of pages
  CountingAllocator counts;  // of everything, pages included
  RankPlan rank;             // for printing and for the check against the host
  std::int64_t page_bytes = 0;
};

struct MemoryPlanInputs {
  const JobConfig& job;
  const EngineLimits& limits;  // without pages
  const ModelConfig& config;
  const Checkpoint& checkpoint;
  const WeightSource& weights;
  TensorParallel tensor_parallel;
  std::int64_t valid_vocab = 0;
  Backend& backend;
  const HostBudget& budget;
  MemoryPart process;  // what the process holds before any of this
  int rank = 0;
};

// Of one page of the target's own layers on a rank, without a drafter's.
std::int64_t target_page_bytes(const ModelConfig& config, const EngineShape& shape,
                               TensorParallel tensor_parallel);

// Throws Error{kDoesNotFit} with the table and the knobs if the host cannot hold it, or if not even
// one sequence's pages fit.
MemoryPlan plan_memory(const MemoryPlanInputs& inputs);

}  // namespace tandem
