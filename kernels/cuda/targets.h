// The GPU targets that this binary holds code for, and whether they include a given GPU. Plain host
// code over CMake's list, with commas: "90a-real,121a-real,90-virtual".
#pragma once

#include <string>
#include <string_view>

namespace tandem::cuda {

enum class TargetMatch {
  kNative,   // machine code made for this chip
  kPtxOnly,  // the driver would have to compile portable code
  kNone,
};

// Machine code of a plain target runs on later minor versions of its major version; with the
// letter a it runs on exactly its own version. PTX runs on the same and later versions, with the
// letter a again on its own only.
TargetMatch match_target(std::string_view targets, int major, int minor);

// Whether there is machine code with the instructions of that chip alone (the letter a).
bool has_own_instructions(std::string_view targets, int major, int minor);

// "sm_90a sm_121a compute_90"
std::string describe_targets(std::string_view targets);

// CMake's list of this build.
std::string_view compiled_targets();

}  // namespace tandem::cuda
