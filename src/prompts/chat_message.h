// A conversation as plain structs, between the JSON of the prompt file and a chat template.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tandem {

struct ToolArgument {
  std::string name;
  bool is_string = false;
  std::string value;  // raw text of a string; else JSON in json.dumps spelling
};

struct ToolCall {
  std::string id;  // may be empty
  std::string name;
  std::vector<ToolArgument> arguments;  // in the order of the file
};

enum class ChatRole { kSystem, kUser, kAssistant, kTool, kDeveloper, kLatestReminder };

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string content;
  std::optional<std::string> reasoning;  // reasoning_content of an assistant turn
  std::vector<ToolCall> tool_calls;      // of an assistant turn
  std::string tool_call_id;              // of a tool result
};

struct Tool {
  std::string entry_json;     // the whole list entry, json.dumps spelling
  std::string function_json;  // its "function" object
};

// Arguments of a template. They are checked in every mode and family, whether the rendering at hand
// would use them or not: a misspelt effort must not pass because thinking happens to be off.
struct ChatOptions {
  bool thinking = false;
  std::optional<std::string> reasoning_effort;
  std::optional<bool> preserve_thinking;
};

struct Conversation {
  std::vector<ChatMessage> messages;
  std::vector<Tool> tools;
  ChatOptions options;
};

}  // namespace tandem
