// The table of every key of the job file: name, type, range, default, unit, help. It drives the
// reading and checking of values, the help text and the printing of the effective configuration.
// YAML is job_file's; this file sees values only as RawValue.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/job_config.h"
#include "config/raw_value.h"

namespace tandem {

enum class KeyType {
  kBool,
  kInteger,
  kNumber,
  kString,
  kPath,
  kSize,
  kDuration,
  kChoice,
  kIntegerList,
  kStringList,
};

// Why a value was refused.
struct ValueProblem {
  std::string what;      // "'0.5' is not an integer"
  std::string expected;  // "an integer from 1 to 1024"
};

enum class Presence { kOptional, kRequired };

// Which changes of a key can change a token of the output (see token_affecting_keys).
enum class TokenEffect {
  kNone,    // never
  kBatch,   // unless the level is batch_invariant or above: batch shapes and their order
  kLayout,  // unless the level is rank_invariant: how the work is split over ranks
  kAlways,
};

struct JobKey {
  std::string name;  // "memory.page_tokens"; without a dot: top level
  KeyType type;
  Presence presence;
  TokenEffect token_effect;
  std::string expected;  // "a power of two from 4 to 256"; completes "expected ..."
  std::string unit;      // "tokens"; empty: none
  std::string help;      // one line
  // Stores the value; a problem leaves the configuration as it was.
  std::function<std::optional<ValueProblem>(JobConfig&, const RawValue&)> set;
  // The value as YAML text that `set` reads back to the same value.
  std::function<std::string(const JobConfig&)> get;
};

// In the order of the sections of job_config.h.
std::span<const JobKey> job_keys();
const JobKey* find_job_key(std::string_view name);
bool is_job_section(std::string_view name);
// The closest name by edit distance; a key of the right name in another section comes first.
std::string nearest_job_key(std::string_view name);

// The table as text for --help.
std::string job_schema_help();

// The keys whose change can change a token, for --resume and compare. Depends on the determinism
// level: batch_invariant frees the scheduler's keys, rank_invariant the layout's. Not listed:
// model.path and prompts.file (checkpoint and prompts are compared by content, which may move),
// prompts.limit (requests are compared one by one).
std::vector<std::string> token_affecting_keys(const JobConfig& config);
// The current value of a key as YAML text.
std::string job_value_text(const JobConfig& config, std::string_view key);

}  // namespace tandem
