#include "engine/memory_plan.h"

#include <algorithm>

#include "base/units.h"
#include "engine/canary.h"
#include "engine/round_runner.h"
#include "layers/full_attention.h"

namespace tandem {
namespace {

CountingAllocator count_parts(const MemoryPlanInputs& in, int num_pages) {
  CountingAllocator counts;
  const EngineLimits limits = with_pages(in.limits, num_pages);
  const DeviceProgram program(counts, {.limits = limits,
                                       .config = in.config,
                                       .checkpoint = in.checkpoint,
                                       .weights = in.weights,
                                       .tensor_parallel = in.tensor_parallel,
                                       .valid_vocab = in.valid_vocab,
                                       .backend = in.backend});
  return counts;
}

RankPlan rank_plan(const MemoryPlanInputs& in, const CountingAllocator& counts,
                   std::int64_t num_pages) {
  RankPlan plan;
  plan.rank = in.rank;
  plan.host = in.budget.host;
  plan.parts.push_back(in.process);
  for (const auto& [name, bytes] : counts.bytes_by_part()) {
    plan.parts.push_back({.name = name, .bytes = static_cast<std::int64_t>(bytes)});
  }
  plan.parts.push_back(
      {.name = "canary kernels", .bytes = static_cast<std::int64_t>(Canary::bytes())});
  // All arenas exist before the first byte is read, so loading adds its staging buffer only.
  plan.load_transient_bytes = LoadOptions{}.staging_bytes;
  for (const auto& part : plan.parts) plan.loaded_parts.push_back(part.name);
  // Made when the weights are there.
  if (in.backend.can_record()) {
    const RoundShapes rounds{.max_sequences = in.limits.shape.max_sequences,
                             .draft_tokens = in.limits.draft_tokens,
                             .adaptive_depth = in.job.speculative.adaptive,
                             .sample = {.logprobs = in.job.output.logprobs > 0}};
    plan.parts.push_back(
        {.name = "recorded rounds", .bytes = recorded_bytes(rounds, in.config.num_hidden_layers)});
  }

  const auto& s = in.limits.scheduler;
  const auto bytes_of = [&](std::string_view part) {
    return static_cast<std::int64_t>(counts.bytes(std::string(part)));
  };
  const auto knob = [&](std::string key, std::string current, std::string suggestion,
                        std::int64_t saves) {
    plan.knobs.push_back({std::move(key), std::move(current), std::move(suggestion), saves});
  };
  if (s.max_sequences > 1) {
    knob("scheduler.max_sequences", std::to_string(s.max_sequences),
         std::to_string(s.max_sequences / 2),
         (bytes_of(parts::kStates) + bytes_of(parts::kSnapshots)) / 2);
  }
  if (s.prefix_cache) knob("scheduler.prefix_cache", "true", "false", bytes_of(parts::kSnapshots));
  if (in.limits.method == SpeculativeMethod::kMtp) {
    knob("speculative.method", "mtp", "none", bytes_of(parts::kDrafterWeights));
  }
  if (s.max_batched_tokens > 512) {
    knob("scheduler.max_batched_tokens", std::to_string(s.max_batched_tokens), "512",
         bytes_of(parts::kActivations) * (s.max_batched_tokens - 512) / s.max_batched_tokens);
  }
  if (!is_fp8(in.limits.shape.kv_format)) {
    EngineShape narrow = in.limits.shape;
    narrow.kv_format = ops::KvFormat::kFp8Dynamic;
    knob("memory.kv_dtype", in.limits.shape.kv_format == ops::KvFormat::kF32 ? "fp32" : "bf16",
         "fp8_dynamic",
         num_pages * (target_page_bytes(in.config, in.limits.shape, in.tensor_parallel) -
                      target_page_bytes(in.config, narrow, in.tensor_parallel)));
  }
  knob("memory.reserve", format_bytes(in.job.memory.reserve_bytes),
       format_bytes(in.job.memory.reserve_bytes / 2), in.job.memory.reserve_bytes / 2);
  return plan;
}

// Pages of the smallest pool worth starting with: one full context.
int least_pages(const EngineLimits& limits) { return limits.shape.pages_per_sequence; }

}  // namespace

std::int64_t target_page_bytes(const ModelConfig& config, const EngineShape& shape,
                               TensorParallel tensor_parallel) {
  const AttentionConfig attention{.num_kv_heads = config.num_key_value_heads,
                                  .head_dim = config.head_dim,
                                  .kv_format = shape.kv_format};
  return config.num_layers_of(LayerType::kFullAttention) *
         FullAttention::page_bytes(attention, shape, tensor_parallel);
}

MemoryPlan plan_memory(const MemoryPlanInputs& in) {
  const CountingAllocator without_pages = count_parts(in, 0);
  const auto kv = [](const CountingAllocator& c) { return c.bytes(std::string(parts::kKvPages)); };
  // So many pages, not one: arrays are rounded up to the arena's alignment, which this multiple of
  // the smallest elements, scales of four bytes, fills.
  constexpr int kPages = kPartAlignment / sizeof(float);
  const auto page_bytes =
      static_cast<std::int64_t>((kv(count_parts(in, kPages)) - kv(without_pages)) / kPages);
  TANDEM_CHECK(page_bytes > 0);

  std::int64_t pages = 0;
  if (in.job.memory.kv_bytes) {
    pages = std::min<std::int64_t>(*in.job.memory.kv_bytes / page_bytes, useful_pages(in.limits));
    if (pages < 1) {
      throw Error(ExitCode::kDoesNotFit,
                  {.what = "a KV pool of " + format_bytes(*in.job.memory.kv_bytes) +
                           " holds no page of " + format_bytes(page_bytes),
                   .where = "memory.kv",
                   .expected = "at least one page",
                   .remedy = "raise memory.kv or leave it at auto"});
    }
  } else {
    const std::int64_t left = bytes_left(rank_plan(in, without_pages, 0), in.budget);
    pages = std::min<std::int64_t>(left / page_bytes, useful_pages(in.limits));
    // Too little even for one context: plan for that much, so that the refusal says what is
    // missing.
    pages =
        std::max<std::int64_t>(pages, std::min(least_pages(in.limits), useful_pages(in.limits)));
  }

  MemoryPlan plan;
  plan.page_bytes = page_bytes;
  plan.limits = with_pages(in.limits, static_cast<int>(pages));
  plan.counts = count_parts(in, static_cast<int>(pages));
  plan.rank = rank_plan(in, plan.counts, pages);
  require_fit(plan.rank, in.budget);
  return plan;
}

}  // namespace tandem
