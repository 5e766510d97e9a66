#include "engine/rank_engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "base/log.h"
#include "engine/dummy_weights.h"
#include "memory/host_memory.h"
#include "parallel/make_device_comm.h"
#include "parallel/transport_audit.h"

namespace tandem {
namespace {

DeviceMemory device_memory(AllocatorChoice choice) {
  switch (choice) {
    case AllocatorChoice::kManaged:
      return DeviceMemory::kManaged;
    case AllocatorChoice::kDevice:
      return DeviceMemory::kDevice;
    case AllocatorChoice::kAuto:
      break;
  }
  return DeviceMemory::kAuto;
}

MemoryPlan make_plan(const RankEngineInputs& in, Backend& backend) {
  const MemorySampler sampler;
  const auto& place = in.layout.place();
  const HostBudget budget =
      host_budget(sampler.sample(), place.host, in.job.memory.reserve_bytes, place.ranks_on_host);
  return plan_memory({.job = in.job,
                      .limits = resolve_limits(in.job, in.files.config),
                      .config = in.files.config,
                      .checkpoint = in.files.checkpoint,
                      .weights = *in.files.weights,
                      .tensor_parallel = {in.layout.tensor_rank, in.layout.tensor},
                      .valid_vocab = in.files.tokenizer.vocab_size(),
                      .backend = backend,
                      .budget = budget,
                      .process = process_baseline(sampler.process()),
                      .rank = in.layout.rank});
}

// All ranks must cut their contexts into the same pages: the smallest pool decides.
MemoryPlan agree_on_pages(const RankEngineInputs& in, MemoryPlan plan, Backend& backend) {
  const auto pages = in.world.all_gather(plan.limits.shape.num_pages);
  const int least = *std::min_element(pages.begin(), pages.end());
  if (least == plan.limits.shape.num_pages) return plan;
  JobConfig job = in.job;
  job.memory.kv_bytes = least * plan.page_bytes;
  RankEngineInputs smaller{job, in.files, in.world, in.layout, in.beacon, {}, {}, {}};
  return make_plan(smaller, backend);
}

// Returns what reading a checkpoint took.
LoadStats load_weights(const RankEngineInputs& in, Model& model, Backend& backend) {
  if (in.files.dummy_weights) {
    fill_dummy_weights(model.weight_requests(), backend);
    return {};
  }
  const auto store = [&backend](void* dst, const void* src, std::size_t bytes) {
    backend.copy(dst, src, bytes);
    backend.synchronize();
  };
  const Loader loader(in.files.checkpoint, model.weight_requests(),
                      {.ignore = model.ignored_tensors(), .quantized = QuantizedWeights::kWiden});
  return loader.load({.drop_page_cache = in.job.memory.drop_page_cache,
                      .scan_for_nan = true,
                      .progress = in.on_load,
                      .store = store});
}

// Throws with the weights whose sums follow the number of ranks if the job promises otherwise.
void check_rank_invariance(const RankEngineInputs& in, const Model& model) {
  const auto& weights = model.rank_dependent_weights();
  if (in.job.run.determinism != DeterminismLevel::kRankInvariant || weights.empty()) return;
  throw Error(
      ExitCode::kConfiguration,
      {.what = fmt::format("rank_invariant is not possible: {} matrices, \"{}\" among them, do not "
                           "divide into equal parts of whole heads and scale blocks for {} ranks",
                           weights.size(), weights.front(), in.layout.tensor),
       .where = "run.determinism",
       .expected = "a number of tensor-parallel ranks that the blocks of every matrix divide into",
       .remedy = "use fewer ranks, parallel.data, or run.determinism: batch_invariant"});
}

}  // namespace

int threads_per_rank(const RankPlace& place) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return 0;  // the backend follows it
  const auto allowed = static_cast<long>(std::thread::hardware_concurrency());
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  const long fair_share = std::max(1L, online / place.ranks_on_host);
  if (allowed >= online) return static_cast<int>(fair_share);  // not bound: share the host
  if (allowed < fair_share) {
    log_warning(
        "this rank is bound to {} of {} cores, its share would be {}: start mpirun with "
        "--bind-to none, or --map-by ppr:1:node:PE={} with one rank a host",
        allowed, online, fair_share, online);
  }
  return static_cast<int>(allowed);
}

BackendKind resolve_backend(BackendChoice choice) {
  switch (choice) {
    case BackendChoice::kCpu:
      return BackendKind::kCpu;
    case BackendChoice::kCuda:
      return BackendKind::kCuda;
    case BackendChoice::kAuto:
      break;
  }
  return default_backend();
}

RankEngine::RankEngine(const RankEngineInputs& in)
    : group_(in.world.split(in.layout.replica, in.layout.tensor_rank)) {
  const auto phase = [&](const char* name) {
    if (in.on_phase) in.on_phase(name);
  };
  phase("plan");
  const BackendKind kind = resolve_backend(in.job.backend);
  const auto collectives =
      in.world.together([&] { return resolve_collectives(in.job.parallel.collectives, kind); });
  const int gpu =
      kind == BackendKind::kCuda ? agree_gpu(in.world, in.layout, gpu_sharing(collectives)) : 0;
  const bool has_own_gpu = in.world.size() == 1 || gpu_sharing(collectives) == GpuSharing::kRefuse;
  in.world.together([&] {
    backend_ = make_backend(kind, {.num_threads = threads_per_rank(in.layout.place()),
                                   .device = gpu,
                                   .device_memory = device_memory(in.job.memory.allocator),
                                   .join_operators = has_own_gpu});
    plan_ = std::make_unique<MemoryPlan>(make_plan(in, *backend_));
  });
  in.world.together([&] { *plan_ = agree_on_pages(in, std::move(*plan_), *backend_); });
  comm_ = make_device_comm(group_, *backend_,
                           {.collectives = in.job.parallel.collectives,
                            .beacon = &in.beacon,
                            .on_failure = in.on_comm_failure});
  // Before the weights: a night's run must not start on a path that the job does not accept.
  transport_ =
      audit_transport(in.world, in.layout, group_, *comm_, *backend_, default_group_check(*comm_));
  if (in.layout.rank == 0) log_info("transport: {}", describe_transport(transport_));
  in.world.together([&] { enforce_transport(in.job.transport.require, in.layout, transport_); });

  phase("kv");
  in.world.together([&] {
    arenas_ = std::make_unique<PartArenas>(*backend_, plan_->counts);
    program_ = std::make_unique<DeviceProgram>(
        *arenas_, DeviceProgramInputs{.limits = plan_->limits,
                                      .config = in.files.config,
                                      .checkpoint = in.files.checkpoint,
                                      .weights = *in.files.weights,
                                      .tensor_parallel = {in.layout.tensor_rank, in.layout.tensor},
                                      .valid_vocab = in.files.tokenizer.vocab_size(),
                                      .backend = *backend_});
    check_rank_invariance(in, program_->model());
  });

  phase("load");
  in.world.together([&] {
    Model& model = program_->model();
    load_stats_ = load_weights(in, model, *backend_);
    model.prepack_weights(*backend_);
  });
  phase("steady");
}

LayerContext RankEngine::context() {
  return {*backend_, *comm_, program_->scratch(), plan_->limits.shape.activations};
}

}  // namespace tandem
