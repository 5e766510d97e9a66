// Qwen3.8's chat template. Recognised by its arguments and its markup; the English texts (effort
// instructions, tool instructions) and the tool call markup are taken out of the template.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "prompts/chat_families.h"
#include "prompts/template_source.h"

namespace tandem {
namespace {

struct QwenTexts {
  std::string xhigh, low;    // effort instructions
  std::string tools_open;    // "# Tools ... <tools>"
  std::string tools_close;   // "\n</tools>"
  std::string tools_format;  // how to call them
  std::string call_open;     // "<tool_call>\n<function="
  std::string call_close;    // "</function>\n</tool_call>"
};

// The first literal that the template assigns or prints once `effort` was compared equal.
std::optional<std::string> instruction_of(const std::vector<TemplateItem>& items,
                                          const std::string& effort) {
  for (std::size_t i = 0; i + 1 < items.size(); ++i) {
    const std::string& condition = items[i].source;
    if (items[i].kind != TemplateItem::Kind::kStatement ||
        condition.find("reasoning_effort") == std::string::npos ||
        (condition.find("== '" + effort + "'") == std::string::npos &&
         condition.find("== \"" + effort + "\"") == std::string::npos))
      continue;
    const std::vector<Literal> literals = literals_of({items[i + 1]});
    if (literals.size() == 1) return literals.front().value;
  }
  return std::nullopt;
}

std::optional<QwenTexts> texts_of(const std::vector<TemplateItem>& items) {
  const std::vector<Literal> literals = literals_of(items);
  const auto has = [&](std::string_view value) {
    return std::any_of(literals.begin(), literals.end(),
                       [&](const Literal& literal) { return literal.value == value; });
  };
  const auto find = [&](auto matches) -> std::optional<std::string> {
    const auto it = std::find_if(literals.begin(), literals.end(),
                                 [&](const Literal& literal) { return matches(literal.value); });
    return it == literals.end() ? std::nullopt : std::optional(it->value);
  };
  for (const char* markup :
       {"<|im_start|>system\n", "<|im_start|>", "<|im_end|>\n", "<|im_start|>assistant\n",
        "<think>\n\n</think>\n\n", "<think>\n", "\n<think>\n", "\n</think>\n\n", "<|im_start|>user",
        "\n<tool_response>\n", "\n</tool_response>", "\n</parameter>\n"})
    if (!has(markup)) return std::nullopt;

  const auto xhigh = instruction_of(items, "xhigh");
  const auto low = instruction_of(items, "low");
  const auto tools_open =
      find([](const std::string& v) { return v.starts_with("# Tools") && v.ends_with("<tools>"); });
  const auto tools_close = find([](const std::string& v) { return v == "\n</tools>"; });
  const auto format = find([](const std::string& v) {
    return v.starts_with("\n\n") && v.find("<function=") != std::string::npos && !v.ends_with("=");
  });
  const auto call_open =
      find([](const std::string& v) { return v.starts_with('<') && v.ends_with("\n<function="); });
  const auto call_close =
      find([](const std::string& v) { return v.starts_with("</function>\n<"); });
  if (!xhigh || !low || !tools_open || !tools_close || !format || !call_open || !call_close)
    return std::nullopt;
  return QwenTexts{*xhigh, *low, *tools_open, *tools_close, *format, *call_open, *call_close};
}

class Qwen38 : public ChatRenderer {
 public:
  explicit Qwen38(QwenTexts texts) : texts_(std::move(texts)) {}
  std::string family() const override { return "qwen3.8"; }
  bool has_thinking_switch() const override { return true; }

  RenderedPrompt render(const Conversation& conversation) const override {
    const std::vector<ChatMessage>& messages = conversation.messages;
    const ChatOptions& options = conversation.options;
    const std::string instructions = effort_instructions(options);
    const std::size_t last_query = last_query_index(messages);

    std::string text = system_turn(conversation, instructions);
    for (std::size_t i = 0; i < messages.size(); ++i) {
      const ChatMessage& message = messages[i];
      switch (message.role) {
        case ChatRole::kSystem:
          if (i > 0) refuse_conversation("a system message that is not the first message");
          break;
        case ChatRole::kUser:
          text += "<|im_start|>user\n" + content(message) + "<|im_end|>\n";
          break;
        case ChatRole::kAssistant:
          text +=
              assistant_turn(message, options.preserve_thinking.value_or(true) || i > last_query);
          break;
        case ChatRole::kTool:
          if (i > 0 && messages[i - 1].role != ChatRole::kTool) text += "<|im_start|>user";
          text += "\n<tool_response>\n" + content(message) + "\n</tool_response>";
          if (i + 1 == messages.size() || messages[i + 1].role != ChatRole::kTool)
            text += "<|im_end|>\n";
          break;
        case ChatRole::kDeveloper:
        case ChatRole::kLatestReminder:
          refuse_conversation(
              std::string("role '") + role_name(message.role) + "' does not exist in this template",
              "system, user, assistant or tool");
      }
    }
    text += "<|im_start|>assistant\n";
    text += options.thinking ? "<think>\n" : "<think>\n\n</think>\n\n";
    return {std::move(text), options.thinking};
  }

 private:
  static std::string content(const ChatMessage& message) {
    return std::string(python_strip(join_parts(message, "")));
  }

  std::string effort_instructions(const ChatOptions& options) const {
    const std::string effort = options.reasoning_effort.value_or("xhigh");
    if (effort != "xhigh" && effort != "medium" && effort != "low")
      refuse_conversation("reasoning_effort '" + effort + "'", "xhigh, medium or low");
    if (!options.thinking || effort == "medium") return {};
    return effort == "xhigh" ? texts_.xhigh : texts_.low;
  }

  // Tool results wrapped by the caller into user turns are not queries.
  static std::size_t last_query_index(const std::vector<ChatMessage>& messages) {
    for (std::size_t i = messages.size(); i-- > 0;) {
      if (messages[i].role != ChatRole::kUser) continue;
      const std::string text = content(messages[i]);
      if (!text.starts_with("<tool_response>") || !text.ends_with("</tool_response>")) return i;
    }
    refuse_conversation("no user query among the messages");
  }

  std::string system_turn(const Conversation& conversation, const std::string& instructions) const {
    std::vector<std::string> sections;
    if (!instructions.empty()) sections.push_back(instructions);
    if (!conversation.tools.empty()) {
      std::string tools = texts_.tools_open;
      for (const Tool& tool : conversation.tools) tools += "\n" + tool.entry_json;
      sections.push_back(tools + texts_.tools_close + texts_.tools_format);
    }
    const ChatMessage& first = conversation.messages.front();
    if (first.role == ChatRole::kSystem)
      if (std::string text = content(first); !text.empty()) sections.push_back(std::move(text));
    if (sections.empty()) return {};
    std::string turn = "<|im_start|>system\n";
    for (std::size_t i = 0; i < sections.size(); ++i) turn += (i > 0 ? "\n\n" : "") + sections[i];
    return turn + "<|im_end|>\n";
  }

  std::string assistant_turn(const ChatMessage& message, bool keep_thinking) const {
    const std::string answer = content(message);
    std::string turn = "<|im_start|>assistant\n";
    if (keep_thinking)
      turn += "<think>\n" + std::string(python_strip(message.reasoning.value_or(""))) +
              "\n</think>\n\n";
    turn += answer;
    for (std::size_t i = 0; i < message.tool_calls.size(); ++i) {
      const ToolCall& call = message.tool_calls[i];
      turn += i > 0 ? "\n" : answer.empty() ? "" : "\n\n";
      turn += texts_.call_open + call.name + ">\n";
      for (const ToolArgument& argument : call.arguments)
        turn += "<parameter=" + argument.name + ">\n" + argument.value + "\n</parameter>\n";
      turn += texts_.call_close;
    }
    return turn + "<|im_end|>\n";
  }

  QwenTexts texts_;
};

}  // namespace

std::shared_ptr<const ChatRenderer> make_qwen38(std::string_view jinja) {
  for (const char* argument : {"enable_thinking", "reasoning_effort", "preserve_thinking"})
    if (jinja.find(argument) == std::string_view::npos) return nullptr;
  const auto items = split_template(jinja);
  const auto texts = items ? texts_of(*items) : std::nullopt;
  return texts ? std::make_shared<Qwen38>(*texts) : nullptr;
}

}  // namespace tandem
