// Which GPU a rank takes: one a rank, whether the launcher shows every rank the same GPUs or each
// rank its own. Ranks are told apart by host, GPUs by their identity, so that two ranks never end
// up on one GPU unnoticed.
#pragma once

#include <string>
#include <vector>

#include "kernels/backend.h"
#include "parallel/host_comm.h"
#include "parallel/rank_layout.h"

namespace tandem {

enum class GpuSharing {
  kRefuse,  // NCCL cannot join two ranks on one GPU
  kAllow,   // ranks left over take GPUs that are taken already
};

// Pure. gpus: [ranks][visible to the rank]. Result: [ranks] ordinal among those. In the order of
// ranks, each takes the first that no earlier rank of its host has. Throws Error{kConfiguration},
// naming both ranks and the GPU, when none is left and sharing is refused; a rank that sees no GPU
// gets 0 and is the backend's to refuse.
std::vector<int> assign_gpus(const RankLayout& layout,
                             const std::vector<std::vector<VisibleGpu>>& gpus, GpuSharing sharing);

// Collective: asks every rank for its GPUs first. This rank's ordinal.
int agree_gpu(const HostComm& world, const RankLayout& layout, GpuSharing sharing);

}  // namespace tandem
