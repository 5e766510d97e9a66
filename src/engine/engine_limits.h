// From the job file and the model's configuration to the numbers that size everything: one place,
// used by plan and run alike, the same on every rank.
#pragma once

#include <cstdint>

#include "checkpoint/model_config.h"
#include "config/job_config.h"
#include "layers/layer_context.h"
#include "models/model.h"
#include "scheduler/scheduler.h"

namespace tandem {

struct EngineLimits {
  SchedulerLimits scheduler;
  EngineShape shape;
  UnitScales unit_scales = UnitScales::kRefuse;         // of an FP8 KV cache
  SpeculativeMethod method = SpeculativeMethod::kNone;  // resolved, never kAuto
  int draft_tokens = 0;                                 // 0 without a drafter
};

// Everything but the number of pages, which needs the memory plan (with_pages). Throws
// Error{kConfiguration} for combinations that cannot run, e.g. speculative.method mtp on a
// checkpoint without an MTP head, naming the key.
EngineLimits resolve_limits(const JobConfig& job, const ModelConfig& model);

// Pages of one full context of every sequence: more would never be used.
int useful_pages(const EngineLimits& limits);

// The same limits with a KV pool of `num_pages`.
EngineLimits with_pages(EngineLimits limits, int num_pages);

DrafterInput drafter_input(const EngineLimits& limits);

}  // namespace tandem
