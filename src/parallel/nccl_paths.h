// Which kinds of path NCCL may use, agreed on by all ranks before it starts. NCCL reads
// NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_IB_DISABLE on every rank for itself, and fails in
// ways that name neither variable nor rank where they differ ("ring 0 does not contain rank 1").
#pragma once

#include <string>
#include <vector>

#include "parallel/host_comm.h"

namespace tandem {

// A kind of path that some ranks of a group have turned off and others have not.
struct UnequalPath {
  std::string variable;
  std::vector<int> off_on;  // ranks of the group

  std::string text() const;
  bool operator==(const UnequalPath&) const = default;
};

// Collective; before the first call of NCCL in this process, and while no other thread uses the
// environment. What one rank has turned off is turned off on all: the path that is left is then the
// one that the audit sees and that transport.require decides on. Returns what was unequal, the same
// on all ranks.
std::vector<UnequalPath> agree_on_nccl_paths(const HostComm& group);

}  // namespace tandem
