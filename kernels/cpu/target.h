// Which instruction set the kernels run on: chosen once at run time; tests force each in turn.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::cpu {

struct Target {
  std::int64_t id = 0;  // Highway's bit
  std::string name;     // "AVX3", "NEON", "SCALAR"
};

std::string chosen_target_name();
// Compiled in and supported by this machine, best first. The scalar fallback is among them on x86.
std::vector<Target> supported_targets();
// For tests: later operator calls run on this target; id 0 returns to the machine's best.
void force_target(std::int64_t id);

}  // namespace tandem::cpu
