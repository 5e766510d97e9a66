// Whether an interrupted result file may be continued, and what is left to do. Owns the comparison
// of everything that can change a token; the engine decides which job keys those are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "output/records.h"

namespace tandem {

// Everything that can change a token of this run.
struct RunFacts {
  std::map<std::string, std::string> token_keys;  // job key -> value text: "sampling.seed" -> "0"
  std::vector<PromptRow> prompts;                 // in file order
  std::string checkpoint_identity;                // sizes and header hashes; no paths, no times
  std::string tokenizer_sha256;
  std::string program_version;
  int num_ranks = 1;
  bool rank_invariant = false;  // then num_ranks may differ
};

// Hash of what a request asks for: its token ids and a canonical text of its sampling parameters.
std::uint64_t prompt_content_hash(std::span<const std::int32_t> prompt_ids,
                                  std::string_view sampling_text);

// Names one unit of work: a request within one run of one concurrency level.
struct WorkKey {
  std::string id;
  std::int64_t concurrency = 1;
  std::int64_t run_index = 0;
  bool warmup = false;

  auto operator<=>(const WorkKey&) const = default;
};

struct ResumePlan {
  std::set<WorkKey> completed;  // rows already in the file, to be skipped
  std::int64_t session = 1;     // the number the new session gets
  bool ended = false;           // the last session ran to its end and wrote the summary
};

// Reads `file` and compares. Throws Error{kConfiguration} listing every field that differs with
// both values, or when the file is missing, foreign or damaged.
ResumePlan plan_resume(const std::filesystem::path& file, const RunFacts& now);

// The differences alone, one line each; empty when the run may continue.
std::vector<std::string> compare_run_facts(const RunFacts& stored, const RunFacts& now);

}  // namespace tandem
