// The "messages" and "tools" of a request, from JSON text to a Conversation's parts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "prompts/chat_message.h"

namespace tandem {

// `json` must be valid JSON; faults are appended as in parse_prompt_line.
std::vector<ChatMessage> read_messages(std::string_view json, std::vector<std::string>* faults);
std::vector<Tool> read_tools(std::string_view json, std::vector<std::string>* faults);

}  // namespace tandem
