// What a decode step must move through memory, and the speed that a bandwidth allows: the bound
// that measured steps are compared with.
#pragma once

#include <cstdint>

#include "engine/memory_plan.h"

namespace tandem {

struct StepCost {
  std::int64_t weight_bytes = 0;        // read once a step, embedding rows excepted
  std::int64_t state_bytes = 0;         // recurrent states, read and written, per sequence
  std::int64_t kv_bytes_per_token = 0;  // read, per token of context and sequence

  std::int64_t bytes(int sequences, std::int64_t context_tokens) const {
    return weight_bytes + sequences * (state_bytes + kv_bytes_per_token * context_tokens);
  }
};

// Of one rank, for a step without drafts.
StepCost decode_step_cost(const MemoryPlan& plan, const ModelConfig& config,
                          TensorParallel tensor_parallel);

}  // namespace tandem
