// One line of the prompt batch file: JSON to a plain struct, in the plain form or the OpenAI batch
// form. Knows what a field may hold; nothing of tokenizers, contexts or other lines.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "prompts/chat_message.h"

namespace tandem {

// What a line sets itself; the rest comes from the job file.
struct SamplingOverrides {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int> top_k;
  std::optional<double> min_p;
  std::optional<std::uint64_t> seed;
  std::optional<int> max_tokens;
  std::optional<std::vector<std::string>> stop;
  std::optional<bool> ignore_eos;
};

struct PromptLine {
  enum class Input { kNone, kText, kMessages, kTokens };

  std::string id;  // empty: missing or not usable
  Input input = Input::kNone;
  std::string text;                  // kText
  Conversation conversation;         // kMessages; options.thinking is filled in by the caller
  std::vector<std::int32_t> tokens;  // kTokens
  std::optional<bool> thinking;
  SamplingOverrides sampling;
  std::string tags;  // canonical JSON; empty when absent
  std::optional<std::string> reference;
  std::string model;  // body.model, which changes nothing
};

// Appends to `faults` everything that is wrong with the line, each as one sentence without its
// place in the file. What could be read is returned all the same. Never throws for bad input.
PromptLine parse_prompt_line(std::string_view line, std::vector<std::string>* faults);

}  // namespace tandem
