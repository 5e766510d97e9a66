#include "kernels/cpu/target.h"

#include <hwy/targets.h>

namespace tandem::cpu {

std::string chosen_target_name() { return supported_targets().front().name; }

std::vector<Target> supported_targets() {
  std::vector<Target> targets;
  for (const std::int64_t id : hwy::SupportedAndGeneratedTargets()) {
    targets.push_back({id, hwy::TargetName(id)});
  }
  return targets;
}

void force_target(std::int64_t id) { hwy::SetSupportedTargetsForTest(id); }

}  // namespace tandem::cpu
