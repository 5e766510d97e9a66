#include "base/build_info.h"

#include "git_revision.h"  // generated at every build

namespace tandem {

const BuildInfo& build_info() {
  static const BuildInfo info{TANDEM_VERSION, kGitRevision, TANDEM_COMPILER, TANDEM_CXX_FLAGS,
                              TANDEM_BUILD_TYPE};
  return info;
}

}  // namespace tandem
