// Refuses to start if the ranks do not run the same program on the same inputs: two boxes with two
// builds or two checkpoints give results that belong to neither.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "parallel/host_comm.h"
#include "parallel/rank_layout.h"

namespace tandem {

struct IdentityFact {
  std::string name;  // "binary sha256", "checkpoint", "prompt file sha256"
  std::string value;
};

// facts: [ranks][facts]. All differences in one text: field, values, and which ranks have which.
std::optional<ErrorText> compare_identity(const std::vector<std::vector<IdentityFact>>& facts,
                                          const std::vector<RankPlace>& places);
// Collective. Throws Error{kConfiguration} on every rank.
void require_same_identity(const HostComm& world, const RankLayout& layout,
                           const std::vector<IdentityFact>& facts);

}  // namespace tandem
