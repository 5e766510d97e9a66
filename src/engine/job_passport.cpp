#include "engine/job_passport.h"

#include <fmt/format.h>

#include "base/build_info.h"
#include "config/job_keys.h"
#include "engine/request_exchange.h"
#include "kernels/device_sensors.h"
#include "parallel/collective_library.h"
#include "parallel/mpi_env.h"

namespace tandem {
namespace {

std::string checkpoint_identity(const ModelFiles& files) {
  if (files.checkpoint.files().empty()) return "dummy weights";
  return fmt::format("{:016x}", files.checkpoint.identity_hash());
}

std::string kv_format_text(ops::KvFormat format) {
  const std::string name(dtype_name(kv_dtype(format)));
  switch (format) {
    case ops::KvFormat::kFp8Dynamic:
      return name + " (a scale for each token and head)";
    case ops::KvFormat::kFp8Static:
      return name + " (given scales)";
    default:
      return name;
  }
}

}  // namespace

Passport ranks_passport(const RankLayout& layout) {
  Passport p = gather_host_passport();
  p.set("ranks.count", std::int64_t{layout.size});
  p.set("ranks.map", render_rank_map(layout));
  p.set("mpi.version", mpi_version_text());
  p.set("cuda.version", device_library_text());
  p.set("nccl.version", gpu_collective_library_text());
  return p;
}

Passport job_passport(const JobDescription& d) {
  Passport p = ranks_passport(d.layout);
  const JobConfig& config = d.job.config;
  p.set("job.name", config.job);
  p.set("job.config_yaml", d.job.resolved_yaml);
  p.set("job.file_sha256", d.job.job_file_sha256);
  std::vector<std::string> origins;
  for (const auto& key : d.job.keys) {
    if (key.origin != "default")
      origins.push_back(key.key + " = " + key.value + "  (" + key.origin + ")");
  }
  p.set("job.settings", origins);
  p.set("prompts.path", config.prompts.file);
  p.set("prompts.sha256", d.prompt_file_sha256);
  p.set("prompts.count", static_cast<std::int64_t>(d.requests.size()));

  p.set("checkpoint.path", config.model.path);
  p.set("checkpoint.family", family_name(d.files.config.family));
  p.set("checkpoint.architecture", d.files.config.architecture);
  p.set("checkpoint.identity", checkpoint_identity(d.files));
  p.set("checkpoint.dummy_weights", std::int64_t{d.files.dummy_weights});
  std::vector<std::string> files;
  for (const auto& f : d.files.checkpoint.files()) {
    files.push_back(fmt::format("{} bytes={} mtime_ns={} header_xxh3={:016x}", f.name, f.bytes,
                                f.mtime_ns, f.header_hash));
  }
  p.set("checkpoint.files", files);
  p.set("tokenizer.sha256", d.files.tokenizer.sha256());

  p.set("ranks.tensor", std::int64_t{d.layout.tensor});
  p.set("ranks.data", std::int64_t{d.layout.data});

  const auto& shape = d.limits.shape;
  p.set("precision.activations", dtype_name(shape.activations));
  p.set("precision.kv_cache", kv_format_text(shape.kv_format));
  p.set("precision.recurrent_state", dtype_name(DType::kF32));
  p.set("speculative.method", d.limits.method == SpeculativeMethod::kMtp ? "mtp" : "none");
  p.set("speculative.tokens", std::int64_t{d.limits.draft_tokens});
  p.set("scheduler.max_context", std::int64_t{d.limits.scheduler.max_context});
  p.set("determinism.level", job_value_text(config, "run.determinism"));
  return p;
}

void add_transport(const TransportEvidence& evidence, Passport& p) {
  p.set("transport", evidence.name);
  p.set("transport.is_rdma", std::int64_t{evidence.is_rdma});
  if (!evidence.pairs.empty()) p.set("transport.pairs", evidence.pairs);
  if (!evidence.devices.empty()) p.set("transport.devices", evidence.devices);
  if (!evidence.doubts.empty()) p.set("transport.doubts", evidence.doubts);
  if (evidence.latency_us) {
    p.set("transport.latency_us", *evidence.latency_us);
    p.set("transport.latency_bytes", evidence.latency_bytes);
  }
  if (evidence.bandwidth_gb_s) {
    p.set("transport.bandwidth_gb_s", *evidence.bandwidth_gb_s);
    p.set("transport.bandwidth_bytes", evidence.bandwidth_bytes);
  }
}

RunFacts job_run_facts(const JobDescription& d) {
  RunFacts facts;
  for (const auto& key : token_affecting_keys(d.job.config)) {
    facts.token_keys[key] = job_value_text(d.job.config, key);
  }
  for (const auto& request : d.requests) {
    facts.prompts.push_back(
        {.id = request.id,
         .content_hash = prompt_content_hash(request.prompt_ids, sampling_text(request.sampling))});
  }
  facts.checkpoint_identity = checkpoint_identity(d.files);
  facts.tokenizer_sha256 = d.files.tokenizer.sha256();
  facts.program_version = build_info().version;
  facts.num_ranks = d.layout.size;
  facts.rank_invariant = d.job.config.run.determinism == DeterminismLevel::kRankInvariant;
  return facts;
}

}  // namespace tandem
