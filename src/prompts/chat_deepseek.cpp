// DeepSeek-V4's chat encoding. The checkpoint ships it as Python source; the rules are written out
// here, the fixed texts (reasoning efforts, tool instructions) are read from that source.
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "prompts/chat_families.h"
#include "prompts/template_source.h"

namespace tandem {
namespace {

constexpr const char* kBos = "<｜begin▁of▁sentence｜>";
constexpr const char* kEos = "<｜end▁of▁sentence｜>";
constexpr const char* kUser = "<｜User｜>";
constexpr const char* kAssistant = "<｜Assistant｜>";
constexpr const char* kLatestReminder = "<｜latest_reminder｜>";
constexpr const char* kThinkOpen = "<think>";
constexpr const char* kThinkClose = "</think>";
constexpr const char* kDsml = "｜DSML｜";

struct DeepSeekTexts {
  std::map<std::string, std::string> efforts;  // level to prefix; empty without an encoder file
  std::string tools;                           // with {tool_schemas} and other {fields}
};

// Position behind "NAME ... =" at the beginning of a line.
std::optional<std::size_t> behind_assignment(std::string_view source, const std::string& name) {
  for (std::size_t at = source.find(name); at != std::string_view::npos;
       at = source.find(name, at + 1)) {
    const std::size_t equals = source.find('=', at);
    const std::size_t line_end = source.find('\n', at);
    if ((at == 0 || source[at - 1] == '\n') && equals < line_end) return equals + 1;
  }
  return std::nullopt;
}

// {"low": "", "high": ("..." "..."), ...}
std::optional<std::map<std::string, std::string>> read_dictionary(std::string_view source,
                                                                  std::size_t at) {
  std::map<std::string, std::string> out;
  at = source.find('{', at);
  while (at != std::string_view::npos) {
    at = source.find_first_of("\"'}", at);
    if (at == std::string_view::npos) return std::nullopt;
    if (source[at] == '}') return out;
    const std::optional<Literal> key = literal_at(source, at);
    if (!key) return std::nullopt;
    const std::size_t colon = source.find(':', key->end);
    if (colon == std::string_view::npos) return std::nullopt;
    const std::optional<Literal> value = joined_literals_at(source, colon + 1);
    if (!value) return std::nullopt;
    out[key->value] = value->value;
    at = value->end;
  }
  return std::nullopt;
}

std::optional<DeepSeekTexts> texts_of(std::string_view encoder) {
  DeepSeekTexts texts;
  if (encoder.empty()) return texts;
  const auto tools = behind_assignment(encoder, "TOOLS_TEMPLATE");
  const auto literal = tools ? joined_literals_at(encoder, *tools) : std::nullopt;
  if (!literal || literal->value.find("{tool_schemas}") == std::string::npos) return std::nullopt;
  texts.tools = literal->value;
  if (const auto efforts = behind_assignment(encoder, "REASONING_EFFORT_PROMPTS")) {
    const auto levels = read_dictionary(encoder, *efforts);
    if (!levels || levels->empty()) return std::nullopt;
    texts.efforts = *levels;
  } else if (const auto max = behind_assignment(encoder, "REASONING_EFFORT_MAX")) {
    // The preview release: "high" and no effort at all add nothing.
    const auto prefix = joined_literals_at(encoder, *max);
    if (!prefix) return std::nullopt;
    texts.efforts = {{"high", ""}, {"max", prefix->value}};
  } else {
    return std::nullopt;
  }
  return texts;
}

struct Part {
  std::string text;
  bool is_result = false;
  std::string call_id;
};

// A message with tool results and neighbouring user messages merged.
struct Turn {
  ChatRole role = ChatRole::kUser;
  std::vector<Part> parts;
  const ChatMessage* message = nullptr;  // the first of those merged
};

bool is_user(ChatRole role) { return role == ChatRole::kUser || role == ChatRole::kDeveloper; }

// Results come in the order of the calls they answer, wherever the others stand.
void sort_results(const std::vector<ToolCall>& calls, std::vector<Part>* parts) {
  std::vector<Part> results;
  for (const Part& part : *parts)
    if (part.is_result) results.push_back(part);
  const auto order = [&calls](const Part& part) {
    const auto it = std::find_if(calls.begin(), calls.end(), [&](const ToolCall& call) {
      return !call.id.empty() && call.id == part.call_id;
    });
    return it == calls.end() ? 0 : it - calls.begin();
  };
  std::stable_sort(results.begin(), results.end(),
                   [&](const Part& a, const Part& b) { return order(a) < order(b); });
  auto next = results.begin();
  for (Part& part : *parts)
    if (part.is_result) part = *next++;
}

std::vector<Turn> merge_turns(const std::vector<ChatMessage>& messages) {
  std::vector<Turn> turns;
  const std::vector<ToolCall>* calls = nullptr;
  for (const ChatMessage& message : messages) {
    const bool is_result = message.role == ChatRole::kTool;
    const ChatRole role = is_result ? ChatRole::kUser : message.role;
    if (role != ChatRole::kUser || turns.empty() || turns.back().role != ChatRole::kUser)
      turns.push_back({role, {}, &message});
    Turn& turn = turns.back();
    if (is_result) {
      turn.parts.push_back({"<tool_result>" + join_parts(message, "\n\n") + "</tool_result>", true,
                            message.tool_call_id});
    } else {
      for (const std::string& part : message.parts) turn.parts.push_back({part, false, {}});
    }
    if (!message.tool_calls.empty()) calls = &message.tool_calls;
    if (role == ChatRole::kUser && calls != nullptr) sort_results(*calls, &turn.parts);
  }
  return turns;
}

std::size_t last_user_index(const std::vector<Turn>& turns) {
  for (std::size_t i = turns.size(); i-- > 0;)
    if (is_user(turns[i].role)) return i;
  refuse_conversation("no user message");
}

std::string text_of(const Turn& turn) {
  std::string text;
  for (std::size_t i = 0; i < turn.parts.size(); ++i)
    text += (i > 0 ? "\n\n" : "") + turn.parts[i].text;
  return text;
}

class DeepSeekV4 : public ChatRenderer {
 public:
  explicit DeepSeekV4(DeepSeekTexts texts) : texts_(std::move(texts)) {}
  std::string family() const override { return "deepseek-v4"; }
  bool has_thinking_switch() const override { return true; }

  RenderedPrompt render(const Conversation& conversation) const override {
    const ChatOptions& options = conversation.options;
    const std::string prefix = effort_prefix(options);
    std::vector<Turn> turns = merge_turns(conversation.messages);
    // Closed by the end-of-sequence token, such a conversation leaves the model in a dead state.
    if (!is_user(turns.back().role))
      refuse_conversation(std::string("the conversation ends with a message of role '") +
                              role_name(turns.back().role) + "'",
                          "user or tool last");
    // preserve_thinking is the opposite of the encoder's drop_thinking, which tools switch off.
    const bool drop = !options.preserve_thinking.value_or(false) && conversation.tools.empty();
    if (options.thinking && drop) {
      const std::size_t last = last_user_index(turns);
      for (std::size_t i = last; i-- > 0;)
        if (turns[i].role == ChatRole::kDeveloper)
          turns.erase(turns.begin() + static_cast<std::ptrdiff_t>(i));
    }
    std::string text = kBos + (options.thinking ? prefix : std::string());
    std::string tools = tools_block(conversation.tools);
    if (!tools.empty() && std::none_of(turns.begin(), turns.end(), [](const Turn& turn) {
          return turn.role == ChatRole::kSystem;
        })) {
      text += std::exchange(tools, {});
    }
    const std::size_t last_user = last_user_index(turns);
    for (std::size_t i = 0; i < turns.size(); ++i) {
      const bool keeps_thinking = options.thinking && (!drop || i > last_user);
      switch (turns[i].role) {
        case ChatRole::kSystem:
          text += text_of(turns[i]) + std::exchange(tools, {});
          break;
        case ChatRole::kUser:
        case ChatRole::kDeveloper:
          text += kUser + text_of(turns[i]);
          break;
        case ChatRole::kLatestReminder:
          text += kLatestReminder + text_of(turns[i]);
          break;
        case ChatRole::kAssistant:
          if (keeps_thinking) text += turns[i].message->reasoning.value_or("") + kThinkClose;
          text += text_of(turns[i]) + calls_block(turns[i].message->tool_calls) + kEos;
          break;
        case ChatRole::kTool:  // merged into user turns above
          break;
      }
      const bool model_next = i + 1 == turns.size() || turns[i + 1].role == ChatRole::kAssistant ||
                              turns[i + 1].role == ChatRole::kLatestReminder;
      if (is_user(turns[i].role) && model_next) {
        text += kAssistant;
        text += options.thinking && (!drop || i >= last_user) ? kThinkOpen : kThinkClose;
      }
    }
    return {std::move(text), options.thinking};
  }

 private:
  std::string effort_prefix(const ChatOptions& options) const {
    if (!options.reasoning_effort) return {};
    if (texts_.efforts.empty())
      refuse_conversation("reasoning_effort needs encoding/encoding_dsv4.py of the checkpoint");
    const auto it = texts_.efforts.find(*options.reasoning_effort);
    if (it == texts_.efforts.end()) {
      std::string levels;
      for (const auto& [level, unused] : texts_.efforts)
        levels += (levels.empty() ? "" : ", ") + level;
      refuse_conversation("reasoning_effort '" + *options.reasoning_effort + "'",
                          "one of " + levels);
    }
    return it->second;
  }

  // With the blank line that separates it from the system text.
  std::string tools_block(const std::vector<Tool>& tools) const {
    if (tools.empty()) return {};
    if (texts_.tools.empty())
      refuse_conversation("tools need encoding/encoding_dsv4.py of the checkpoint");
    std::string schemas;
    for (const Tool& tool : tools) schemas += (schemas.empty() ? "" : "\n") + tool.function_json;
    const std::map<std::string_view, std::string_view> fields{
        {"{dsml_token}", kDsml},
        {"{thinking_start_token}", kThinkOpen},
        {"{thinking_end_token}", kThinkClose},
        {"{tool_schemas}", schemas}};
    std::string block = "\n\n";
    const std::string_view source = texts_.tools;
    for (std::size_t at = 0; at < source.size();) {
      const auto field = std::find_if(fields.begin(), fields.end(), [&](const auto& entry) {
        return source.substr(at).starts_with(entry.first);
      });
      if (field == fields.end()) {
        block.push_back(source[at++]);
      } else {
        block += field->second;
        at += field->first.size();
      }
    }
    return block;
  }

  static std::string calls_block(const std::vector<ToolCall>& calls) {
    if (calls.empty()) return {};
    const std::string dsml = kDsml;
    std::string block = "\n\n<" + dsml + "tool_calls>\n";
    for (const ToolCall& call : calls) {
      block += "<" + dsml + "invoke name=\"" + call.name + "\">\n";
      for (std::size_t i = 0; i < call.arguments.size(); ++i) {
        const ToolArgument& argument = call.arguments[i];
        block += std::string(i > 0 ? "\n" : "") + "<" + dsml + "parameter name=\"" + argument.name +
                 "\" string=\"" + (argument.is_string ? "true" : "false") + "\">" + argument.value +
                 "</" + dsml + "parameter>";
      }
      block += "\n</" + dsml + "invoke>\n";
    }
    return block + "</" + dsml + "tool_calls>";
  }

  DeepSeekTexts texts_;
};

}  // namespace

std::shared_ptr<const ChatRenderer> make_deepseek_v4(std::string_view encoder) {
  const auto texts = texts_of(encoder);
  return texts ? std::make_shared<DeepSeekV4>(*texts) : nullptr;
}

}  // namespace tandem
