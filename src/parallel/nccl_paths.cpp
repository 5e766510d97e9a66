#include "parallel/nccl_paths.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdlib>

namespace tandem {
namespace {

constexpr std::array<const char*, 3> kVariables = {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE",
                                                   "NCCL_IB_DISABLE"};

// NCCL takes them for numbers.
bool is_off(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::strtol(value, nullptr, 0) != 0;
}

}  // namespace

std::string UnequalPath::text() const {
  return fmt::format("{} is set on rank{} {} only", variable, off_on.size() > 1 ? "s" : "",
                     fmt::join(off_on, ", "));
}

std::vector<UnequalPath> agree_on_nccl_paths(const HostComm& group) {
  std::array<bool, kVariables.size()> mine{};
  for (std::size_t i = 0; i < kVariables.size(); ++i) mine[i] = is_off(kVariables[i]);
  const auto all = group.all_gather(mine);
  std::vector<UnequalPath> unequal;
  for (std::size_t i = 0; i < kVariables.size(); ++i) {
    UnequalPath path{.variable = kVariables[i], .off_on = {}};
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (all[rank][i]) path.off_on.push_back(static_cast<int>(rank));
    }
    if (path.off_on.empty() || path.off_on.size() == all.size()) continue;
    if (!mine[i]) setenv(kVariables[i], "1", 1);
    unequal.push_back(std::move(path));
  }
  return unequal;
}

}  // namespace tandem
