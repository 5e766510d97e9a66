// `tandem plan`: what each rank of a job would hold, from the checkpoint's headers alone.
#include <algorithm>

#include "base/error.h"
#include "base/units.h"
#include "cli/commands.h"
#include "config/job_file.h"
#include "engine/memory_plan.h"
#include "engine/model_files.h"
#include "engine/rank_engine.h"
#include "engine/step_cost.h"
#include "memory/host_memory.h"
#include "parallel/host_info.h"

namespace tandem {
namespace {

// What a rank program holds before its arenas exist: MPI, HDF5 and their buffers, measured on a
// two-rank job (VmRSS before the plan). Replaces this process's own figure, which has none of them.
constexpr std::int64_t kRankProcessBytes = std::int64_t{48} << 20;

// LPDDR5X of the reference machine; gives the bound for one GB10 box.
constexpr double kGb10BytesPerSecond = 273e9;

HostBudget budget_for(const PlanOptions& options, const JobConfig& job) {
  // Every rank on a host of its own, as on the reference machine; a budget given on the command
  // line is that of one such host.
  HostBudget budget =
      host_budget(MemorySampler().sample(), host_name(), job.memory.reserve_bytes, 1);
  if (options.mem_available_bytes) {
    budget.available_bytes = *options.mem_available_bytes;
    budget.limited_by = "--mem-available";
    budget.host = "planned host";
  }
  return budget;
}

void print_pool(const MemoryPlan& plan) {
  const auto& shape = plan.limits.shape;
  const std::int64_t tokens = std::int64_t{shape.num_pages} * shape.page_tokens;
  fmt::print(
      "KV pool: {} pages of {} tokens ({} a page) = {} tokens = {:.1f} full contexts of {}\n",
      shape.num_pages, shape.page_tokens, format_bytes(plan.page_bytes), tokens,
      static_cast<double>(tokens) / plan.limits.scheduler.max_context,
      plan.limits.scheduler.max_context);
}

void print_step_cost(const StepCost& cost, const EngineLimits& limits) {
  fmt::print(
      "\nA decode step without drafts moves, per rank: {} of weights, {} of recurrent state a "
      "sequence (read and written), {} of KV a sequence and token of context.\n",
      format_bytes(cost.weight_bytes), format_bytes(cost.state_bytes),
      format_bytes(cost.kv_bytes_per_token));
  fmt::print("{:>10} {:>10} {:>14} {:>22}\n", "sequences", "context", "bytes/step",
             "bound at 273 GB/s");
  for (const int sequences : {1, limits.scheduler.max_sequences}) {
    for (const std::int64_t context : {1024, 32768}) {
      if (context > limits.scheduler.max_context) continue;
      const auto bytes = cost.bytes(sequences, context);
      fmt::print("{:>10} {:>10} {:>14} {:>16.1f} tok/s\n", sequences, context, format_bytes(bytes),
                 sequences * kGb10BytesPerSecond / static_cast<double>(bytes));
    }
  }
}

}  // namespace

int plan_command(const PlanOptions& options) {
  const ResolvedJob job = load_job(options.job_file, options.overrides);
  const RankLayout layout = plan_rank_layout(options.np, job.config.parallel);
  const ModelFiles files = open_model_files(job.config.model);
  const EngineLimits limits = resolve_limits(job.config, files.config);
  const auto backend = make_backend(resolve_backend(job.config.backend), {});
  const HostBudget budget = budget_for(options, job.config);

  for (int rank = 0; rank < layout.tensor; ++rank) {
    const TensorParallel tensor_parallel{rank, layout.tensor};
    const MemoryPlan plan =
        plan_memory({.job = job.config,
                     .limits = limits,
                     .config = files.config,
                     .checkpoint = files.checkpoint,
                     .weights = *files.weights,
                     .tensor_parallel = tensor_parallel,
                     .valid_vocab = files.tokenizer.vocab_size(),
                     .backend = *backend,
                     .budget = budget,
                     .process = {.name = kProcessPart, .bytes = kRankProcessBytes},
                     .rank = rank});
    fmt::print("{}\n", render_plan(plan.rank, budget));
    print_pool(plan);
    if (rank == layout.tensor - 1) {
      print_step_cost(decode_step_cost(plan, files.config, tensor_parallel), plan.limits);
    }
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace tandem
