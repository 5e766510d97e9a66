// What the user asked for, one request a line of the prompt batch file, after tokenization.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "config/job_config.h"

namespace tandem {

// Sampling parameters of one request: the job's defaults with the line's overrides applied.
struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy
  float top_p = 1.0f;
  int top_k = 0;  // 0: off
  float min_p = 0.0f;
  std::uint64_t seed = 0;
  int max_tokens = 300;
  std::vector<std::string> stop;
  StopScope stop_scope = StopScope::kAnswer;
  bool ignore_eos = false;
};

struct Request {
  std::string id;                        // unique in the file
  std::vector<std::int32_t> prompt_ids;  // at least one, after template and tokenizer
  std::string prompt_text;               // as rendered; empty when the line gave token ids
  SamplingParams sampling;
  std::string tags;  // canonical JSON text; empty when absent
  std::optional<std::string> reference;
  int line = 0;                // 1-based line of the prompt file
  bool thinking = false;       // the prompt ends inside a thinking block
  std::string invalid_reason;  // not empty: recorded as failed, never scheduled
};

// The request's part of the random generator's key. A hash of the id, not a row number: a sample
// must not change when other lines are added, removed or reordered.
inline std::uint64_t request_key(const Request& request) { return xxh3_64(request.id); }

}  // namespace tandem
