// A conversation as plain structs, between the JSON of the prompt file and a chat template.
#pragma once

#include <cstddef>
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

constexpr const char* role_name(ChatRole role) {
  switch (role) {
    case ChatRole::kSystem:
      return "system";
    case ChatRole::kUser:
      return "user";
    case ChatRole::kAssistant:
      return "assistant";
    case ChatRole::kTool:
      return "tool";
    case ChatRole::kDeveloper:
      return "developer";
    case ChatRole::kLatestReminder:
      return "latest_reminder";
  }
  return "";
}

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::vector<std::string> parts;        // text of the content; families join parts differently
  std::optional<std::string> reasoning;  // reasoning_content of an assistant turn
  std::vector<ToolCall> tool_calls;      // of an assistant turn
  std::string tool_call_id;              // of a tool result
};

struct Tool {
  std::string entry_json;     // the whole list entry, json.dumps spelling
  std::string function_json;  // its "function" object
};

inline std::string join_parts(const ChatMessage& message, const std::string& separator) {
  std::string text;
  for (std::size_t i = 0; i < message.parts.size(); ++i)
    text += (i > 0 ? separator : std::string()) + message.parts[i];
  return text;
}

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
