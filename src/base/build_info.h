// How this binary was made: part of every result's passport and of `tandem --version`.
#pragma once

#include <string>

namespace tandem {

struct BuildInfo {
  std::string version;       // "0.1.0"
  std::string git_revision;  // "4f0c1a2b3d4e", "-dirty" appended for a modified tree; "unknown"
  std::string compiler;      // "GNU 12.2.0"
  std::string flags;         // "-O2 -g1 -ffp-contract=off"
  std::string build_type;    // "RelWithDebInfo"
};

const BuildInfo& build_info();

}  // namespace tandem
