// Chat templates: recognition, and renderings against Jinja (Qwen3.8) and against strings written
// from the encoding's rules (DeepSeek-V4, ChatML).
#include "prompts/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "prompts/chat_json.h"
#include "prompts/python_json.h"
#include "prompts/template_source.h"
#include "tests/support/test_data.h"

namespace tandem {
namespace {

using json = nlohmann::ordered_json;
using ::testing::HasSubstr;

ChatTemplate detect(const std::string& file, const std::string& text) {
  const testing::TempDir dir;
  std::filesystem::create_directories((dir / file).parent_path());
  testing::write_text(dir / file, text);
  return ChatTemplate::detect(dir.path());
}

Conversation conversation(const std::string& messages, const std::string& tools = "[]") {
  std::vector<std::string> faults;
  Conversation out;
  out.messages = read_messages(messages, &faults);
  out.tools = read_tools(tools, &faults);
  EXPECT_THAT(faults, ::testing::IsEmpty());
  return out;
}

std::string refusal(const ChatTemplate& chat, const Conversation& messages) {
  try {
    chat.render(messages);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kPrompts);
    return e.what();
  }
  return "(not refused)";
}

std::string qwen_source() {
  return testing::read_text(testing::source_dir() / "tests/prompts/qwen_style.jinja");
}

TEST(QwenTemplate, RendersAsJinjaDoes) {
  const ChatTemplate chat = detect("chat_template.jinja", qwen_source());
  ASSERT_EQ(chat.family(), "qwen3.8");
  EXPECT_TRUE(chat.has_thinking_switch());
  const json cases =
      json::parse(testing::read_text(testing::source_dir() / "tests/prompts/qwen_cases.json"));
  ASSERT_GE(cases.size(), 100u);
  for (const json& c : cases) {
    Conversation input = conversation(c["messages"].dump(), c["tools"].dump());
    const json& options = c["options"];
    input.options.thinking = options["enable_thinking"].get<bool>();
    if (options.contains("reasoning_effort"))
      input.options.reasoning_effort = options["reasoning_effort"].get<std::string>();
    if (options.contains("preserve_thinking"))
      input.options.preserve_thinking = options["preserve_thinking"].get<bool>();
    const std::string name = c["name"].get<std::string>() + " " + options.dump();
    if (c["text"].is_null()) {
      EXPECT_NE(refusal(chat, input), "(not refused)") << name;
    } else {
      const RenderedPrompt prompt = chat.render(input);
      EXPECT_EQ(prompt.text, c["text"].get<std::string>()) << name;
      EXPECT_EQ(prompt.thinking, input.options.thinking);
    }
  }
}

TEST(QwenTemplate, ArgumentsAreCheckedInEveryMode) {
  const ChatTemplate chat = detect("chat_template.jinja", qwen_source());
  Conversation input = conversation(R"([{"role": "user", "content": "x"}])");
  input.options.reasoning_effort = "high";
  for (const bool thinking : {true, false}) {
    input.options.thinking = thinking;
    EXPECT_THAT(refusal(chat, input), HasSubstr("xhigh, medium or low"));
  }
}

TEST(QwenTemplate, IsFoundInTheTokenizerConfigToo) {
  EXPECT_EQ(detect("tokenizer_config.json", json{{"chat_template", qwen_source()}}.dump()).family(),
            "qwen3.8");
  const json named = {{"chat_template",
                       {{{"name", "tool_use"}, {"template", "x"}},
                        {{"name", "default"}, {"template", qwen_source()}}}}};
  EXPECT_EQ(detect("tokenizer_config.json", named.dump()).family(), "qwen3.8");
  EXPECT_THROW(detect("tokenizer_config.json", R"({"chat_template": 7})"), Error);
  EXPECT_THROW(detect("tokenizer_config.json", "{"), Error);
}

TEST(QwenTemplate, WithoutItsTextsItIsUnknown) {
  // Every one of these removals changes what the model reads, so none may pass as the known family.
  for (const char* part : {"'<think>\\n\\n</think>\\n\\n'", "# Tools", "preserve_thinking",
                           "'<tool_call>\\n<function='", "'\\n<tool_response>\\n'"}) {
    std::string source = qwen_source();
    for (std::size_t at; (at = source.find(part)) != std::string::npos;)
      source.replace(at, std::string_view(part).size(), "''");
    EXPECT_FALSE(detect("chat_template.jinja", source).usable()) << part;
  }
}

TEST(ChatMlTemplate, OfTheTinyCheckpoint) {
  const ChatTemplate chat = ChatTemplate::detect(testing::test_data("tiny-qwen3.8"));
  ASSERT_EQ(chat.family(), "chatml");
  EXPECT_FALSE(chat.has_thinking_switch());
  Conversation input = conversation(
      R"([{"role": "system", "content": " S "}, {"role": "user", "content": "hi"},
          {"role": "assistant", "content": "yo"}, {"role": "user", "content": "x"}])");
  const std::string expected =
      "<|im_start|>system\n S <|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
      "<|im_start|>assistant\nyo<|im_end|>\n<|im_start|>user\nx<|im_end|>\n"
      "<|im_start|>assistant\n";
  EXPECT_EQ(chat.render(input).text, expected);
  input.options.thinking = true;  // nothing to switch
  EXPECT_EQ(chat.render(input).text, expected);
  EXPECT_FALSE(chat.render(input).thinking);
  input.options.reasoning_effort = "low";
  EXPECT_THAT(refusal(chat, input), HasSubstr("reasoning_effort"));
}

TEST(ChatMlTemplate, RefusesWhatItWouldLeaveOut) {
  const ChatTemplate chat = ChatTemplate::detect(testing::test_data("tiny-qwen3.8"));
  EXPECT_THAT(refusal(chat, conversation(R"([{"role": "user", "content": "x"}])",
                                         R"([{"type": "function", "function": {"name": "f"}}])")),
              HasSubstr("tools"));
}

TEST(ChatMlTemplate, OtherSpellings) {
  const auto family = [](const char* source) {
    return detect("chat_template.jinja", source).family();
  };
  EXPECT_EQ(family("{% if not add_generation_prompt is defined %}{% set add_generation_prompt = "
                   "false %}{% endif %}{% for message in messages %}{{'<|im_start|>' + "
                   "message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor "
                   "%}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"),
            "chatml");
  EXPECT_EQ(family("{%- for m in messages -%}\n  {{- \"<|im_start|>\" + m[\"role\"] + \"\\n\" + "
                   "m.content + \"<|im_end|>\\n\" -}}\n{%- endfor -%}\n{%- if "
                   "add_generation_prompt -%}{{ \"<|im_start|>assistant\\n\" }}{%- endif -%}"),
            "chatml");
  // One difference each: another role at the end, trimmed contents, a default system message.
  EXPECT_EQ(family("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
                   "{% endfor %}{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"),
            "none");
  EXPECT_EQ(family("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim "
                   "}}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
                   "{% endif %}"),
            "none");
  EXPECT_EQ(family("<|im_start|>system\nBe good.<|im_end|>\n{% for m in messages %}<|im_start|>"
                   "{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if "
                   "add_generation_prompt %}<|im_start|>assistant\n{% endif %}"),
            "none");
}

TEST(ChatTemplate, UnknownOrMissingSaysWhatToDo) {
  const Conversation input = conversation(R"([{"role": "user", "content": "x"}])");
  const testing::TempDir empty;
  for (const ChatTemplate& chat :
       {detect("chat_template.jinja", "{{ messages }}"), ChatTemplate::detect(empty.path()),
        detect("chat_template.jinja", "{% for broken"), detect("encoding/encoding_dsv4.py", "x")}) {
    EXPECT_FALSE(chat.usable());
    EXPECT_THAT(chat.reason(), HasSubstr("prompts.chat_template: none"));
    EXPECT_THAT(refusal(chat, input), HasSubstr(chat.reason()));
  }
  EXPECT_THAT(refusal(ChatTemplate::none(), input), HasSubstr("none"));
}

// The shape of DeepSeek's encoder source, with other English texts.
constexpr const char* kEncoder = R"PY(
# REASONING_EFFORT_PROMPTS and TOOLS_TEMPLATE are used below.
REASONING_EFFORT_PROMPTS: Dict[str, str] = {
    "low": "",
    "high": (
        "Effort: high.\n"
        "Think \"hard\" \u2014 really.\n\n"  # two lines
    ),
    'max': "Effort: max.\n\n",
}
TOOLS_TEMPLATE = """## Tools

Open with <{dsml_token}tool_calls> behind {thinking_end_token}.

{tool_schemas}

End.
"""
)PY";

TEST(DeepSeekTemplate, PlainConversation) {
  const ChatTemplate chat = detect("encoding/encoding_dsv4.py", kEncoder);
  ASSERT_EQ(chat.family(), "deepseek-v4");
  Conversation input = conversation(
      R"([{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
          {"role": "assistant", "content": "b", "reasoning_content": "r"},
          {"role": "user", "content": "c"}])");
  const std::string chat_mode =
      "<｜begin▁of▁sentence｜>S<｜User｜>a<｜Assistant｜></think>b<｜end▁of▁sentence｜>"
      "<｜User｜>c<｜Assistant｜>";
  EXPECT_EQ(chat.render(input).text, chat_mode + "</think>");
  EXPECT_FALSE(chat.render(input).thinking);
  // Earlier reasoning is dropped, and the earlier turn looks like one without thinking.
  input.options.thinking = true;
  EXPECT_EQ(chat.render(input).text, chat_mode + "<think>");
  EXPECT_TRUE(chat.render(input).thinking);
  input.options.preserve_thinking = true;
  EXPECT_EQ(
      chat.render(input).text,
      "<｜begin▁of▁sentence｜>S<｜User｜>a<｜Assistant｜><think>r</think>b<｜end▁of▁sentence｜>"
      "<｜User｜>c<｜Assistant｜><think>");
}

TEST(DeepSeekTemplate, EffortIsAPrefixOfThinkingOnly) {
  const ChatTemplate chat = detect("encoding/encoding_dsv4.py", kEncoder);
  Conversation input = conversation(R"([{"role": "user", "content": "a"}])");
  const std::string rest = "<｜User｜>a<｜Assistant｜>";
  input.options.reasoning_effort = "high";
  EXPECT_EQ(chat.render(input).text, "<｜begin▁of▁sentence｜>" + rest + "</think>");
  input.options.thinking = true;
  EXPECT_EQ(
      chat.render(input).text,
      "<｜begin▁of▁sentence｜>Effort: high.\nThink \"hard\" \u2014 really.\n\n" + rest + "<think>");
  input.options.reasoning_effort = "xhigh";
  for (const bool thinking : {true, false}) {
    input.options.thinking = thinking;
    EXPECT_THAT(refusal(chat, input), HasSubstr("one of high, low, max"));
  }
}

TEST(DeepSeekTemplate, ToolsAndResults) {
  const ChatTemplate chat = detect("encoding/encoding_dsv4.py", kEncoder);
  const std::string tools =
      R"([{"type":"function","function":{"name":"f","parameters":{"a":[1,2.0]}}}])";
  Conversation input = conversation(
      R"([{"role": "user", "content": "q"},
          {"role": "assistant", "content": null, "reasoning_content": "r", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"s\": \"x\", \"n\": [1]}"}},
            {"id": "2", "type": "function", "function": {"name": "g", "arguments": {"b": true}}}]},
          {"role": "tool", "tool_call_id": "2", "content": "two"},
          {"role": "tool", "tool_call_id": "1", "content": "one"},
          {"role": "user", "content": "go on"}])",
      tools);
  input.options.thinking = true;
  EXPECT_EQ(
      chat.render(input).text,
      "<｜begin▁of▁sentence｜>\n\n## Tools\n\nOpen with <｜DSML｜tool_calls> behind </think>.\n\n"
      "{\"name\": \"f\", \"parameters\": {\"a\": [1, 2.0]}}\n\nEnd.\n"
      "<｜User｜>q<｜Assistant｜><think>r</think>\n\n<｜DSML｜tool_calls>\n"
      "<｜DSML｜invoke name=\"f\">\n"
      "<｜DSML｜parameter name=\"s\" string=\"true\">x</｜DSML｜parameter>\n"
      "<｜DSML｜parameter name=\"n\" string=\"false\">[1]</｜DSML｜parameter>\n"
      "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n"
      "<｜DSML｜parameter name=\"b\" string=\"false\">true</｜DSML｜parameter>\n"
      "</｜DSML｜invoke>\n</｜DSML｜tool_calls><｜end▁of▁sentence｜>"
      "<｜User｜><tool_result>one</tool_result>\n\n<tool_result>two</tool_result>\n\ngo on"
      "<｜Assistant｜><think>");
}

TEST(DeepSeekTemplate, RefusesDeadEnds) {
  const ChatTemplate chat = detect("encoding/encoding_dsv4.py", kEncoder);
  EXPECT_THAT(refusal(chat, conversation(R"([{"role": "user", "content": "q"},
                                             {"role": "assistant", "content": "a"}])")),
              HasSubstr("ends with a message of role 'assistant'"));
  EXPECT_THAT(refusal(chat, conversation(R"([{"role": "system", "content": "q"}])")),
              HasSubstr("user or tool last"));
}

TEST(DeepSeekTemplate, WithoutItsEncoderPlainConversationsWork) {
  const ChatTemplate chat = detect("config.json", R"({"model_type": "deepseek_v4"})");
  Conversation input = conversation(R"([{"role": "user", "content": "a"}])");
  EXPECT_EQ(chat.render(input).text, "<｜begin▁of▁sentence｜><｜User｜>a<｜Assistant｜></think>");
  input.options.reasoning_effort = "high";
  EXPECT_THAT(refusal(chat, input), HasSubstr("encoding_dsv4.py"));
  EXPECT_FALSE(detect("config.json", R"({"model_type": "other"})").usable());
}

TEST(TemplateSource, Literals) {
  EXPECT_EQ(literal_at(R"('a\n\'"\u4e2d\x41')", 0)->value, "a\n'\"\u4e2dA");
  EXPECT_EQ(literal_at("'''a'b\n'''", 0)->value, "a'b\n");
  EXPECT_EQ(joined_literals_at("  ('a' # no\n \"b\")", 0)->value, "ab");
  EXPECT_EQ(joined_literals_at("'a'\n'b'", 0)->value, "a");
  for (const char* bad : {"x", "'a", "'\\q'", "'\\u12'", "'\\ud800'", "'a\\"})
    EXPECT_FALSE(literal_at(bad, 0)) << bad;
}

TEST(PythonJson, SpellsAsJsonDumps) {
  EXPECT_EQ(python_json(R"({"b":1,"a":[true,null,"ä\n/"],"c":{}})"),
            R"({"b": 1, "a": [true, null, "ä\n/"], "c": {}})");
  const std::vector<std::pair<double, const char*>> floats{{1.0, "1.0"},
                                                           {-0.5, "-0.5"},
                                                           {1e15, "1000000000000000.0"},
                                                           {1e16, "1e+16"},
                                                           {1e-4, "0.0001"},
                                                           {1e-5, "1e-05"},
                                                           {123.456, "123.456"},
                                                           {1.5e300, "1.5e+300"},
                                                           {-2.5e-7, "-2.5e-07"},
                                                           {0.0, "0.0"},
                                                           {0.1 + 0.2, "0.30000000000000004"}};
  for (const auto& [value, text] : floats) EXPECT_EQ(python_float(value), text);
}

}  // namespace
}  // namespace tandem
