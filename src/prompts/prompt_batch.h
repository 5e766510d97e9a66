// The prompt batch file (JSONL, product contract section 3): bytes to validated, tokenized
// requests. The whole file is checked before anything else starts, and every fault of every line is
// reported.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/job_config.h"
#include "prompts/chat_template.h"
#include "prompts/request.h"
#include "prompts/tokenizer.h"

namespace tandem {

enum class BadPrompts {
  kRefuse,  // any bad line: Error{kPrompts} that lists all of them
  kSkip,    // a bad line becomes a Request with invalid_reason
};

struct PromptBatch {
  std::vector<Request> requests;  // in file order, at most prompts.limit
  std::string sha256;             // of the whole file
  int num_lines = 0;              // lines of the file, blank ones included
  std::vector<std::string> warnings;
};

// `max_context` is the limit for prompt plus completion: a prompt must leave room for one token; a
// max_tokens beyond it is allowed and ends by length. Token ids must be below `vocab_limit` (rows
// of the embedding). With prompts.limit only the first so many non-blank lines are looked at.
//
// Text of special tokens inside a prompt becomes those tokens, as in the reference libraries;
// inside chat messages this is warned about. Plain prompts get the BOS the tokenizer adds, if any;
// rendered conversations get theirs from the template alone; token ids are taken as they are.
//
// Throws Error{kPrompts} (file unreadable, no request in it, bad lines under kRefuse) and
// Error{kConfiguration} (a line has messages and the checkpoint's template is unknown).
PromptBatch load_prompt_batch(const std::filesystem::path& path, const Tokenizer& tokenizer,
                              const ChatTemplate& chat_template, const JobConfig& config,
                              int max_context, int vocab_limit, BadPrompts policy);

}  // namespace tandem
