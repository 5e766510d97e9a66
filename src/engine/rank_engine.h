// A rank that is ready to run: backend, collectives, memory, weights, step loop. Building one is
// the whole start-up after the files are known; every step that can fail on one rank alone is
// agreed between all before the next collective.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "engine/memory_plan.h"
#include "engine/model_files.h"
#include "engine/part_arenas.h"
#include "parallel/comm_watch.h"
#include "parallel/rank_layout.h"
#include "parallel/transport.h"

namespace tandem {

struct RankEngineInputs {
  const JobConfig& job;
  const ModelFiles& files;
  const HostComm& world;
  const RankLayout& layout;
  StepBeacon& beacon;
  // Called on every rank with each phase that begins: "plan", "kv", "load", "steady".
  std::function<void(const std::string&)> on_phase;
  std::function<void(const LoadProgress&)> on_load;
  // Told when the collectives fail while no call can say so: RankGuard::fail.
  FailureHandler on_comm_failure = end_process;
};

class RankEngine {
 public:
  // Collective over `world`. Throws the same Error on all ranks.
  explicit RankEngine(const RankEngineInputs& inputs);

  const MemoryPlan& plan() const { return *plan_; }
  const LoadStats& load_stats() const { return load_stats_; }
  Backend& backend() { return *backend_; }
  DeviceComm& comm() { return *comm_; }
  const TransportEvidence& transport() const { return transport_; }
  const HostComm& group() const { return group_; }
  DeviceProgram& program() { return *program_; }
  std::string plan_text() const { return plan_text_; }
  LayerContext context();

 private:
  HostComm group_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DeviceComm> comm_;
  TransportEvidence transport_;
  std::unique_ptr<MemoryPlan> plan_;
  std::unique_ptr<PartArenas> arenas_;
  std::unique_ptr<DeviceProgram> program_;
  LoadStats load_stats_;
  std::string plan_text_;
};

// CPU threads of a rank that shares its host with others: OMP_NUM_THREADS if set (returns 0), the
// cores the launcher bound it to, or else its share of the host. Warns about a binding that stacks
// ranks on few cores.
int threads_per_rank(const RankPlace& place);

// The backend a job asks for.
BackendKind resolve_backend(BackendChoice choice);

}  // namespace tandem
