// The plain ChatML template, in any of its spellings: the template is reduced to a list of texts,
// values and blocks, and that list is compared.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "prompts/chat_families.h"
#include "prompts/template_source.h"

namespace tandem {
namespace {

std::string without_blanks(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (std::string_view(" \t\r\n").find(c) == std::string_view::npos) out.push_back(c);
  return out;
}

// "'<|im_start|>' + m.role + '\n'" appended to the pattern, in which "\1role" and "\1content" stand
// for values. False for anything but a sum of literals and these.
bool append_sum(std::string_view expression, const std::string& variable, std::string* pattern) {
  std::size_t at = 0;
  while (at < expression.size()) {
    if (const std::optional<Literal> literal = literal_at(expression, at)) {
      *pattern += literal->value;
      at = literal->end;
    } else {
      const std::size_t plus = std::min(expression.find('+', at), expression.size());
      const std::string name = without_blanks(expression.substr(at, plus - at));
      std::optional<std::string> field;
      for (const char* key : {"role", "content"})
        if (name == variable + "." + key || name == variable + "['" + key + "']" ||
            name == variable + "[\"" + key + "\"]")
          field = key;
      if (!field) return false;
      *pattern += '\1' + *field;
      at = plus;
    }
    at = expression.find_first_not_of(' ', at);
    if (at == std::string_view::npos) return true;
    if (expression[at] != '+') return false;
    at = expression.find_first_not_of(' ', at + 1);
    if (at == std::string_view::npos) return false;
  }
  return false;
}

std::optional<std::string> pattern_of(const std::vector<TemplateItem>& items) {
  std::string pattern;
  std::string variable;
  for (const TemplateItem& item : items) {
    if (item.kind == TemplateItem::Kind::kText) {
      pattern += item.source;
    } else if (item.kind == TemplateItem::Kind::kExpression) {
      if (!append_sum(item.source, variable, &pattern)) return std::nullopt;
    } else {
      const std::string statement = without_blanks(item.source);
      if (statement.starts_with("for") && statement.ends_with("inmessages") &&
          statement.size() > 13) {
        variable = statement.substr(3, statement.size() - 13);
        pattern += "\2for;";
      } else {
        pattern += "\2" + statement + ";";
      }
    }
  }
  return pattern;
}

class ChatMl : public ChatRenderer {
 public:
  std::string family() const override { return "chatml"; }
  bool has_thinking_switch() const override { return false; }

  RenderedPrompt render(const Conversation& conversation) const override {
    const ChatOptions& options = conversation.options;
    if (options.reasoning_effort) refuse_conversation("this template has no reasoning_effort");
    if (options.preserve_thinking) refuse_conversation("this template has no preserve_thinking");
    // The template would leave them out without a word.
    if (!conversation.tools.empty()) refuse_conversation("this template has no place for tools");
    std::string text;
    for (const ChatMessage& message : conversation.messages) {
      if (!message.tool_calls.empty())
        refuse_conversation("this template has no place for tool calls");
      text += std::string("<|im_start|>") + role_name(message.role) + "\n" +
              join_parts(message, "\n") + "<|im_end|>\n";
    }
    return {text + "<|im_start|>assistant\n", false};
  }
};

}  // namespace

std::shared_ptr<const ChatRenderer> make_chatml(std::string_view jinja) {
  constexpr std::string_view kPattern =
      "\2for;<|im_start|>\1role\n\1content<|im_end|>\n\2endfor;"
      "\2ifadd_generation_prompt;<|im_start|>assistant\n\2endif;";
  // Some spellings give the argument a default first; here it is always true.
  constexpr std::array<std::string_view, 2> kPreambles{
      "\2ifnotadd_generation_promptisdefined;\2setadd_generation_prompt=false;\2endif;",
      "\2ifadd_generation_promptisnotdefined;\2setadd_generation_prompt=false;\2endif;"};
  const auto items = split_template(jinja);
  const auto pattern = items ? pattern_of(*items) : std::nullopt;
  if (!pattern) return nullptr;
  std::string_view rest = *pattern;
  for (const std::string_view preamble : kPreambles)
    if (rest.starts_with(preamble)) rest.remove_prefix(preamble.size());
  return rest == kPattern ? std::make_shared<ChatMl>() : nullptr;
}

}  // namespace tandem
