// The checks of `tandem inspect --verify` that go beyond opening a checkpoint: nothing left over,
// and the hashes of a manifest.
#pragma once

#include <filesystem>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/fault_list.h"

namespace tandem {

// Adds leftover tensors and weight files to `faults`. With a manifest (the format of sha256sum:
// "<64 hex digits>  <file>", names relative to the checkpoint) every listed file is hashed and
// compared, and every weight file has to be listed.
void verify_checkpoint(const Checkpoint& checkpoint,
                       const std::optional<std::filesystem::path>& manifest, FaultList& faults);

}  // namespace tandem
