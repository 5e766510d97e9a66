// A shareable copy of a result: the same datasets, without host names, users, addresses and paths.
// Prompts, completions and request ids are the user's own words and stay.
#pragma once

#include <filesystem>

namespace tandem {

// Writes `output` anew from the datasets of the schema (so nothing unknown and no left-over bytes
// of `input` can slip through). Throws Error{kConfiguration} if `input` is not a result, or if
// `output` exists or cannot be written.
void redact_result(const std::filesystem::path& input, const std::filesystem::path& output);

}  // namespace tandem
