// Small JSON files of a checkpoint, read whole and proved well formed before anything interprets
// them: bounded size and nesting, valid UTF-8, no duplicate keys (a plain parser would silently
// keep the last one).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "checkpoint/fault_list.h"

namespace tandem {

inline constexpr std::uint64_t kMaxJsonBytes = 256u << 20;  // an index of 150,000 tensors has 15 MB
inline constexpr int kMaxJsonDepth = 64;

// The text of `path`, or an empty string after adding what is wrong to `faults`, prefixed with the
// file name.
std::string read_json_text(const std::filesystem::path& path, FaultList& faults);

}  // namespace tandem
