#include "prompts/chat_json.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "prompts/python_json.h"

namespace tandem {
namespace {

// Keys keep their order: templates print tool schemas and arguments as they were written.
using json = nlohmann::ordered_json;

std::optional<ChatRole> role_of(const std::string& name) {
  constexpr std::array kRoles{ChatRole::kSystem, ChatRole::kUser,      ChatRole::kAssistant,
                              ChatRole::kTool,   ChatRole::kDeveloper, ChatRole::kLatestReminder};
  for (const ChatRole role : kRoles)
    if (name == role_name(role)) return role;
  return std::nullopt;
}

class MessageReader {
 public:
  MessageReader(std::string path, std::vector<std::string>* faults)
      : path_(std::move(path)), faults_(faults) {}

  ChatMessage read(const json& value) {
    ChatMessage message;
    if (!value.is_object()) {
      fault("", "is not an object");
      return message;
    }
    bool has_role = false;
    bool has_content = false;
    for (const auto& [key, field] : value.items()) {
      if (field.is_null()) continue;
      if (key == "role") {
        const auto role = field.is_string() ? role_of(field.get<std::string>()) : std::nullopt;
        has_role = true;
        if (role) {
          message.role = *role;
        } else {
          fault(".role", fmt::format("is {}; expected system, user, assistant, tool, developer or "
                                     "latest_reminder",
                                     field.dump()));
        }
      } else if (key == "content") {
        has_content = true;
        read_content(field, &message);
      } else if (key == "reasoning_content" || key == "reasoning") {
        if (const auto text = string_of("." + key, field)) message.reasoning = *text;
      } else if (key == "tool_calls") {
        read_calls(field, &message);
      } else if (key == "tool_call_id") {
        if (const auto text = string_of("." + key, field)) message.tool_call_id = *text;
      } else if (key != "name") {  // no template here prints names
        fault("." + key, "is not a known field");
      }
    }
    if (!has_role) fault("", "has no role");
    if (!has_content && message.tool_calls.empty()) fault("", "has no content");
    if (message.reasoning && message.role != ChatRole::kAssistant)
      fault("", "has reasoning_content, but is not the assistant's");
    if (!message.tool_calls.empty() && message.role != ChatRole::kAssistant)
      fault("", "has tool_calls, but is not the assistant's");
    return message;
  }

 private:
  void fault(const std::string& field, const std::string& what) {
    faults_->push_back(fmt::format("{}{} {}", path_, field, what));
  }

  std::optional<std::string> string_of(const std::string& field, const json& value) {
    if (value.is_string()) return value.get<std::string>();
    fault(field, "is not a string");
    return std::nullopt;
  }

  void read_content(const json& content, ChatMessage* message) {
    if (content.is_string()) {
      message->parts.push_back(content.get<std::string>());
      return;
    }
    if (!content.is_array()) return fault(".content", "is neither a string nor a list of parts");
    for (std::size_t i = 0; i < content.size(); ++i) {
      const std::string field = fmt::format(".content[{}]", i);
      const json& part = content[i];
      const auto type = part.is_object() ? part.find("type") : part.end();
      if (!part.is_object() || type == part.end() || !type->is_string()) {
        fault(field, "is not a part with a type");
      } else if (*type != "text") {
        fault(field, fmt::format("has type {}; this program reads text only", type->dump()));
      } else if (!part.contains("text") || !part["text"].is_string()) {
        fault(field, "has no text");
      } else {
        message->parts.push_back(part["text"].get<std::string>());
      }
    }
  }

  void read_calls(const json& calls, ChatMessage* message) {
    if (!calls.is_array()) return fault(".tool_calls", "is not a list");
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const std::string field = fmt::format(".tool_calls[{}]", i);
      if (!calls[i].is_object()) {
        fault(field, "is not an object");
        continue;
      }
      ToolCall call;
      if (const auto id = calls[i].find("id"); id != calls[i].end() && id->is_string())
        call.id = id->get<std::string>();
      const json& function = calls[i].contains("function") ? calls[i]["function"] : calls[i];
      const auto name = function.is_object() ? function.find("name") : function.end();
      if (!function.is_object() || name == function.end() || !name->is_string()) {
        fault(field, "has no function name");
        continue;
      }
      call.name = name->get<std::string>();
      if (const auto arguments = function.find("arguments"); arguments != function.end())
        read_arguments(field + ".arguments", *arguments, &call);
      message->tool_calls.push_back(std::move(call));
    }
  }

  // The OpenAI form is a string of JSON; an object is accepted as well.
  void read_arguments(const std::string& field, const json& value, ToolCall* call) {
    if (value.is_null() || value == "") return;
    json arguments = value;
    if (value.is_string()) {
      const auto text = value.get<std::string>();
      arguments = json_depth(text) > kMaxJsonDepth ? json() : json::parse(text, nullptr, false);
    }
    if (!arguments.is_object()) return fault(field, "is not a JSON object");
    for (const auto& [key, argument] : arguments.items()) {
      const bool is_string = argument.is_string();
      call->arguments.push_back(
          {key, is_string, is_string ? argument.get<std::string>() : python_json(argument.dump())});
    }
  }

  std::string path_;
  std::vector<std::string>* faults_;
};

}  // namespace

std::vector<ChatMessage> read_messages(std::string_view text, std::vector<std::string>* faults) {
  const json list = json::parse(text);
  std::vector<ChatMessage> messages;
  if (!list.is_array() || list.empty()) {
    faults->push_back(list.is_array() ? "messages is empty" : "messages is not a list");
    return messages;
  }
  for (std::size_t i = 0; i < list.size(); ++i)
    messages.push_back(MessageReader(fmt::format("messages[{}]", i), faults).read(list[i]));
  return messages;
}

std::vector<Tool> read_tools(std::string_view text, std::vector<std::string>* faults) {
  const json list = json::parse(text);
  std::vector<Tool> tools;
  if (!list.is_array()) {
    faults->push_back("tools is not a list");
    return tools;
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const json& entry = list[i];
    const bool is_tool = entry.is_object() && entry.contains("function") &&
                         entry["function"].is_object() && entry["function"].contains("name") &&
                         entry["function"]["name"].is_string();
    if (!is_tool) {
      faults->push_back(
          fmt::format("tools[{}] is not {{\"type\": \"function\", \"function\": "
                      "{{\"name\": ...}}}}",
                      i));
      continue;
    }
    tools.push_back({python_json(entry.dump()), python_json(entry["function"].dump())});
  }
  return tools;
}

}  // namespace tandem
