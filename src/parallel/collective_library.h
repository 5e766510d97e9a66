// Which library carries collectives on GPUs, for --version and the passport.
#pragma once

#include <string>

namespace tandem {

// "NCCL 2.28.3", as loaded, or "not compiled in".
std::string gpu_collective_library_text();

}  // namespace tandem
