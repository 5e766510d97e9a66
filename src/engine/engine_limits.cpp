#include "engine/engine_limits.h"

#include <algorithm>
#include <limits>
#include <string>

namespace tandem {
namespace {

// Rows of one sequence that a recomputation after preemption processes in one round.
constexpr int kRecomputeRows = 8;
// Recurrent states kept for the prefix cache, per slot. Each is as large as a slot's own.
constexpr int kSnapshotsPerSequence = 2;

[[noreturn]] void refuse(const std::string& key, const std::string& what,
                         const std::string& expected, const std::string& remedy) {
  throw Error(ExitCode::kConfiguration,
              {.what = what, .where = key, .expected = expected, .remedy = remedy});
}

SpeculativeMethod resolve_method(const JobConfig& job, const ModelConfig& model) {
  const bool has_mtp = model.mtp_num_hidden_layers > 0;
  switch (job.speculative.method) {
    case SpeculativeMethod::kAuto:
      return has_mtp ? SpeculativeMethod::kMtp : SpeculativeMethod::kNone;
    case SpeculativeMethod::kNone:
      return SpeculativeMethod::kNone;
    case SpeculativeMethod::kMtp:
      if (!has_mtp) {
        refuse("speculative.method", "the checkpoint has no MTP head (mtp_num_hidden_layers is 0)",
               "auto or none for this checkpoint", "set speculative.method: auto");
      }
      return SpeculativeMethod::kMtp;
    default:
      break;
  }
  refuse("speculative.method",
         "this drafter is not available for family " + std::string(family_name(model.family)) +
             " in this build",
         "auto, none or mtp", "set speculative.method: auto");
}

DType activation_dtype(const JobConfig& job) {
  return job.model.activation_dtype == ActivationDType::kFp32 ? DType::kF32 : DType::kBF16;
}

ops::KvFormat plain_kv_format(DType activations) {
  return activations == DType::kF32 ? ops::KvFormat::kF32 : ops::KvFormat::kBf16;
}

ops::KvFormat kv_format(const JobConfig& job, const ModelConfig& model, DType activations) {
  switch (job.memory.kv_dtype) {
    case KvDType::kAuto:
      return plain_kv_format(activations);
    case KvDType::kBf16:
      return ops::KvFormat::kBf16;
    case KvDType::kFp32:
      return ops::KvFormat::kF32;
    case KvDType::kFp8Dynamic:
      return ops::KvFormat::kFp8Dynamic;
    case KvDType::kFp8Static:
      return ops::KvFormat::kFp8Static;
    case KvDType::kFp8DsMla:
      break;
  }
  refuse("memory.kv_dtype",
         "fp8_ds_mla is the packed form of another family than " +
             std::string(family_name(model.family)),
         "auto, bf16, fp32, fp8_dynamic or fp8_static", "set memory.kv_dtype: fp8_dynamic");
}

int max_context(const JobConfig& job, const ModelConfig& model) {
  const std::int64_t most = std::min<std::int64_t>(model.max_position_embeddings,
                                                   std::numeric_limits<std::int32_t>::max());
  if (!job.scheduler.max_context) return static_cast<int>(most);
  if (*job.scheduler.max_context > most) {
    refuse("scheduler.max_context",
           std::to_string(*job.scheduler.max_context) + " is beyond the model's positions",
           "at most max_position_embeddings = " + std::to_string(most),
           "lower it or leave it at auto");
  }
  return *job.scheduler.max_context;
}

}  // namespace

EngineLimits resolve_limits(const JobConfig& job, const ModelConfig& model) {
  if (job.model.drafter) {
    refuse("model.drafter", "no drafter of this build comes in a checkpoint of its own", "null",
           "remove the key; the MTP head is part of the model's checkpoint");
  }
  EngineLimits limits;
  limits.method = resolve_method(job, model);
  limits.draft_tokens = limits.method == SpeculativeMethod::kNone ? 0 : job.speculative.tokens;

  auto& s = limits.scheduler;
  s.max_sequences = job.scheduler.max_sequences;
  s.max_batched_tokens = job.scheduler.max_batched_tokens;
  s.max_context = max_context(job, model);
  s.max_long_prefills = job.scheduler.max_long_prefills;
  s.long_prefill_tokens = job.scheduler.long_prefill_tokens;
  s.page_tokens = job.memory.page_tokens;
  s.draft_tokens = limits.draft_tokens;
  s.max_round_rows = std::max(limits.draft_tokens + 1, kRecomputeRows);
  s.prefix_cache = job.scheduler.prefix_cache;
  s.num_snapshots = s.prefix_cache ? kSnapshotsPerSequence * s.max_sequences : 0;

  auto& e = limits.shape;
  e.max_sequences = s.max_sequences;
  e.max_rows = std::max(s.max_batched_tokens, s.max_sequences * s.max_round_rows);
  e.max_round_rows = s.max_round_rows;
  e.page_tokens = s.page_tokens;
  e.pages_per_sequence = pages_for_tokens(s.max_context, s.page_tokens);
  e.num_snapshots = s.num_snapshots;
  e.open_blocks = s.max_batched_tokens < kStateBlockTokens;
  e.activations = activation_dtype(job);
  e.kv_format = kv_format(job, model, e.activations);
  // A drafter's cache is small, and each of its layers feeds the next draft: not worth eight bits.
  e.drafter_kv_format = is_fp8(e.kv_format) ? plain_kv_format(e.activations) : e.kv_format;
  limits.unit_scales = job.memory.kv_unit_scale ? UnitScales::kAccept : UnitScales::kRefuse;
  return limits;
}

int useful_pages(const EngineLimits& limits) {
  const std::int64_t pages =
      std::int64_t{limits.shape.max_sequences} * limits.shape.pages_per_sequence;
  return static_cast<int>(std::min<std::int64_t>(pages, std::numeric_limits<std::int32_t>::max()));
}

EngineLimits with_pages(EngineLimits limits, int num_pages) {
  limits.scheduler.num_pages = num_pages;
  limits.shape.num_pages = num_pages;
  return limits;
}

DrafterInput drafter_input(const EngineLimits& limits) {
  return limits.method == SpeculativeMethod::kMtp ? DrafterInput::kFinalHidden
                                                  : DrafterInput::kNone;
}

}  // namespace tandem
