// The prompt file: what is accepted, what it becomes, and every fault that must be named.
#include "prompts/prompt_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "base/hash.h"
#include "tests/prompts/tokenizer_fixture.h"
#include "tests/support/test_data.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::load(testing::test_data("tiny-qwen3.8"));
  return tokenizer;
}

const ChatTemplate& tiny_template() {
  static const ChatTemplate chat = ChatTemplate::detect(testing::test_data("tiny-qwen3.8"));
  return chat;
}

struct Loader {
  JobConfig config;
  int max_context = 4096;
  int vocab_limit = 4096;
  BadPrompts policy = BadPrompts::kRefuse;
  const Tokenizer* tokenizer = &tiny();
  ChatTemplate chat = tiny_template();

  PromptBatch load(const std::string& text) const {
    const testing::TempDir dir;
    testing::write_text(dir / "prompts.jsonl", text);
    return load_prompt_batch(dir / "prompts.jsonl", *tokenizer, chat, config, max_context,
                             vocab_limit, policy);
  }
  std::string error(const std::string& text) const {
    try {
      load(text);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kPrompts);
      return e.what();
    }
    return "(accepted)";
  }
};

TEST(PromptBatch, PlainForms) {
  const std::string text =
      "{\"id\": \"a\", \"prompt\": \"Hello, world!\", \"max_tokens\": 5, \"temperature\": 0.5, "
      "\"top_p\": 0.9, \"top_k\": 7, \"min_p\": 0.1, \"seed\": 18446744073709551615, \"stop\": "
      "[\"x\", \"y\"], \"tags\": {\"z\": 1, \"a\": [2]}, \"reference\": \"ref\"}\r\n"
      "\n  \t\n"
      "{\"id\": \"b\", \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"tags\": "
      "\"t\"}\n"
      "{\"id\": \"c\", \"tokens\": [1, 2, 4095], \"seed\": null}";
  Loader loader;
  loader.config.sampling.stop = {"default"};
  loader.config.sampling.seed = 3;
  const PromptBatch batch = loader.load(text);
  EXPECT_EQ(batch.num_lines, 5);
  EXPECT_EQ(batch.sha256, sha256_hex(text));
  EXPECT_THAT(batch.warnings, IsEmpty());
  ASSERT_EQ(batch.requests.size(), 3u);
  const Request& a = batch.requests[0];
  EXPECT_EQ(a.id, "a");
  EXPECT_EQ(a.line, 1);
  EXPECT_THAT(a.prompt_ids, ElementsAre(39, 471, 363, 11, 1187, 1590, 0));
  EXPECT_EQ(a.prompt_text, "Hello, world!");
  EXPECT_EQ(a.sampling.max_tokens, 5);
  EXPECT_FLOAT_EQ(a.sampling.temperature, 0.5f);
  EXPECT_FLOAT_EQ(a.sampling.top_p, 0.9f);
  EXPECT_EQ(a.sampling.top_k, 7);
  EXPECT_FLOAT_EQ(a.sampling.min_p, 0.1f);
  EXPECT_EQ(a.sampling.seed, std::numeric_limits<std::uint64_t>::max());
  EXPECT_THAT(a.sampling.stop, ElementsAre("x", "y"));
  EXPECT_EQ(a.tags, R"({"a":[2],"z":1})");
  EXPECT_EQ(a.reference, "ref");
  EXPECT_EQ(request_key(a), xxh3_64("a"));
  const Request& b = batch.requests[1];
  EXPECT_EQ(b.line, 4);
  EXPECT_EQ(b.prompt_text, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(b.prompt_ids.front(), 4092);
  EXPECT_EQ(b.tags, "\"t\"");
  EXPECT_EQ(b.sampling.max_tokens, 300);
  EXPECT_EQ(b.sampling.seed, 3u);
  EXPECT_THAT(b.sampling.stop, ElementsAre("default"));
  const Request& c = batch.requests[2];
  EXPECT_THAT(c.prompt_ids, ElementsAre(1, 2, 4095));
  EXPECT_EQ(c.prompt_text, "");
  EXPECT_EQ(c.tags, "");
  EXPECT_EQ(c.reference, std::nullopt);
}

TEST(PromptBatch, OpenAiForms) {
  const PromptBatch batch = Loader{}.load(
      R"({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_completion_tokens": 9, "stop": "END", "n": 1, "stream": false, "logprobs": false, "frequency_penalty": 0.0, "response_format": {"type": "text"}, "user": "u", "metadata": {"k": "v"}, "tools": null}})"
      "\n"
      R"({"custom_id": "2", "method": "POST", "url": "/v1/completions", "body": {"prompt": "hi", "max_tokens": 2, "ignore_eos": true}, "tags": "x"})"
      "\n"
      R"({"custom_id": "3", "method": "POST", "url": "/v1/completions", "body": {"prompt": [5, 6]}})"
      "\n"
      R"({"custom_id": "4", "method": "POST", "url": "/v1/completions", "body": {"prompt": ["hi"], "top_k": -1}})");
  ASSERT_EQ(batch.requests.size(), 4u);
  EXPECT_EQ(batch.requests[0].sampling.max_tokens, 9);
  EXPECT_THAT(batch.requests[0].sampling.stop, ElementsAre("END"));
  EXPECT_EQ(batch.requests[0].tags, R"({"k":"v"})");
  EXPECT_THAT(batch.requests[0].prompt_text, HasSubstr("user\nhi<|im_end|>"));
  EXPECT_TRUE(batch.requests[1].sampling.ignore_eos);
  EXPECT_THAT(batch.requests[2].prompt_ids, ElementsAre(5, 6));
  EXPECT_EQ(batch.requests[3].prompt_ids, batch.requests[1].prompt_ids);
  EXPECT_EQ(batch.requests[3].sampling.top_k, 0);
  EXPECT_THAT(batch.warnings, ElementsAre(HasSubstr("1 requests name a model (\"m\")")));
}

struct BadLine {
  const char* what;  // must appear in the message
  std::string line;
};

class BadPromptLine : public ::testing::TestWithParam<BadLine> {};

TEST_P(BadPromptLine, IsNamedWithItsPlace) {
  Loader loader;
  loader.max_context = 100;
  const std::string file = "{\"id\": \"good\", \"prompt\": \"x\"}\n" + GetParam().line + "\n";
  EXPECT_THAT(loader.error(file), AllOf(HasSubstr("prompts.jsonl:2: "), HasSubstr(GetParam().what),
                                        Not(HasSubstr("prompts.jsonl:1: "))));
  loader.policy = BadPrompts::kSkip;
  const PromptBatch batch = loader.load(file);
  ASSERT_EQ(batch.requests.size(), 2u);
  EXPECT_EQ(batch.requests[0].invalid_reason, "");
  EXPECT_THAT(batch.requests[1].invalid_reason, HasSubstr(GetParam().what));
  EXPECT_NE(batch.requests[1].id, "");
}

std::string body(const std::string& fields, const char* url = "/v1/chat/completions") {
  return std::string(R"({"custom_id": "o", "method": "POST", "url": ")") + url + R"(", "body": {)" +
         fields + "}}";
}
const char* const kHi = R"("messages": [{"role": "user", "content": "hi"}])";

INSTANTIATE_TEST_SUITE_P(
    All, BadPromptLine,
    ::testing::Values(
        BadLine{"bad JSON at column 24", R"({"id": "a", "x" "prompt"})"},
        BadLine{"bad JSON", R"({"id": "a", "prompt": "x"} trailing)"},
        BadLine{"bad JSON", R"({"id": "a", "prompt": "\ud800"})"},
        BadLine{"bad JSON", R"({"id": "a", "prompt": "x", "temperature": 1e999})"},
        BadLine{"bad UTF-8 at column 24 (byte 0xFF)", "{\"id\": \"a\", \"prompt\": \"\xFF\"}"},
        BadLine{"not a JSON object", "[1, 2]"},
        BadLine{"nested deeper than 64", std::string(100000, '[')},
        BadLine{
            "is not a JSON object",
            R"({"id": "a", "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ")" +
                std::string(100000, '[') + "\"}}]}]}"},
        BadLine{"id is missing", R"({"prompt": "x"})"},
        BadLine{"id is missing", R"({"id": null, "prompt": "x"})"},
        BadLine{"id is empty", R"({"id": "", "prompt": "x"})"},
        BadLine{"id is not a string", R"({"id": 7, "prompt": "x"})"},
        BadLine{"id \"good\" was used before, in line 1", R"({"id": "good", "prompt": "x"})"},
        BadLine{"key \"prompt\" occurs twice", R"({"id": "a", "prompt": "x", "prompt": "y"})"},
        BadLine{"no prompt", R"({"id": "a"})"},
        BadLine{"more than one of", R"({"id": "a", "prompt": "x", "tokens": [1]})"},
        BadLine{"unknown field \"max_token\"", R"({"id": "a", "prompt": "x", "max_token": 5})"},
        BadLine{"prompt is not a string", R"({"id": "a", "prompt": ["x"]})"},
        BadLine{"the prompt is empty", R"({"id": "a", "prompt": ""})"},
        BadLine{"max_tokens is -1", R"({"id": "a", "prompt": "x", "max_tokens": -1})"},
        BadLine{"max_tokens is 0", R"({"id": "a", "prompt": "x", "max_tokens": 0})"},
        BadLine{"max_tokens is not a whole number",
                R"({"id": "a", "prompt": "x", "max_tokens": 1.5})"},
        BadLine{"max_tokens is 99999999999",
                R"({"id": "a", "prompt": "x", "max_tokens": 99999999999})"},
        BadLine{"temperature is -0.1", R"({"id": "a", "prompt": "x", "temperature": -0.1})"},
        BadLine{"temperature is 101", R"({"id": "a", "prompt": "x", "temperature": 101})"},
        BadLine{"temperature is not a number", R"({"id": "a", "prompt": "x", "temperature": "0"})"},
        BadLine{"top_p is 0", R"({"id": "a", "prompt": "x", "top_p": 0})"},
        BadLine{"top_p is 1.1", R"({"id": "a", "prompt": "x", "top_p": 1.1})"},
        BadLine{"min_p is 1", R"({"id": "a", "prompt": "x", "min_p": 1})"},
        BadLine{"top_k is -2", R"({"id": "a", "prompt": "x", "top_k": -2})"},
        BadLine{"seed is -1", R"({"id": "a", "prompt": "x", "seed": -1})"},
        BadLine{"seed is not a whole number", R"({"id": "a", "prompt": "x", "seed": 1e30})"},
        BadLine{"stop[1] is empty", R"({"id": "a", "prompt": "x", "stop": ["a", ""]})"},
        BadLine{"stop is neither", R"({"id": "a", "prompt": "x", "stop": 3})"},
        BadLine{"tags is neither", R"({"id": "a", "prompt": "x", "tags": [1]})"},
        BadLine{"reference is not a string", R"({"id": "a", "prompt": "x", "reference": 1})"},
        BadLine{"tokens is empty", R"({"id": "a", "tokens": []})"},
        BadLine{"tokens[1] is -5", R"({"id": "a", "tokens": [1, -5]})"},
        BadLine{"tokens[0] is not a whole number", R"({"id": "a", "tokens": ["1"]})"},
        BadLine{"token 2 of the prompt is id 4096", R"({"id": "a", "tokens": [1, 2, 4096]})"},
        BadLine{"the prompt has 120 tokens, which leaves no room",
                R"({"id": "a", "prompt": ")" + std::string(120, '7') + "\"}"},
        BadLine{"messages is empty", R"({"id": "a", "messages": []})"},
        BadLine{"messages is not a list", R"({"id": "a", "messages": {}})"},
        BadLine{"messages[0] is not an object", R"({"id": "a", "messages": ["hi"]})"},
        BadLine{"messages[0].role is \"human\"",
                R"({"id": "a", "messages": [{"role": "human", "content": "x"}]})"},
        BadLine{"messages[0] has no role", R"({"id": "a", "messages": [{"content": "x"}]})"},
        BadLine{"messages[0] has no content", R"({"id": "a", "messages": [{"role": "user"}]})"},
        BadLine{
            "this program reads text only",
            R"({"id": "a", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]})"},
        BadLine{"messages[0].weight is not a known field",
                R"({"id": "a", "messages": [{"role": "user", "content": "x", "weight": 1}]})"},
        BadLine{
            "has tool_calls, but is not the assistant's",
            R"({"id": "a", "messages": [{"role": "user", "content": "x", "tool_calls": [{"name": "f"}]}]})"},
        BadLine{
            "chat_template_kwargs.enable_thinkin is unknown",
            R"({"id": "a", "messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"enable_thinkin": true}})"},
        BadLine{"need messages",
                R"({"id": "a", "prompt": "x", "chat_template_kwargs": {"enable_thinking": true}})"},
        BadLine{
            "this template has no reasoning_effort",
            R"({"id": "a", "messages": [{"role": "user", "content": "x"}], "reasoning_effort": "low"})"},
        BadLine{"url is \"/v1/embeddings\"", body(kHi, "/v1/embeddings")},
        BadLine{"body is missing",
                R"({"custom_id": "o", "method": "POST", "url": "/v1/completions"})"},
        BadLine{
            "method is \"GET\"",
            R"({"custom_id": "o", "method": "GET", "url": "/v1/completions", "body": {"prompt": "x"}})"},
        BadLine{"custom_id is missing",
                R"({"method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}})"},
        BadLine{"body.prompt does not belong", body(R"("prompt": "x")")},
        BadLine{"body.messages does not belong", body(kHi, "/v1/completions")},
        BadLine{"body.n is 2", body(std::string(kHi) + R"(, "n": 2)")},
        BadLine{"body.logprobs is true; set output.logprobs",
                body(std::string(kHi) + R"(, "logprobs": true)")},
        BadLine{"body.presence_penalty is 1.5",
                body(std::string(kHi) + R"(, "presence_penalty": 1.5)")},
        BadLine{"body.response_format",
                body(std::string(kHi) + R"(, "response_format": {"type": "json_object"})")},
        BadLine{"body.modalities is not supported",
                body(std::string(kHi) + R"(, "modalities": ["text"])")}));

TEST(PromptBatch, ListsAllFaultsOfAllLines) {
  std::string file;
  for (int i = 0; i < 40; ++i)
    file += R"({"prompt": 1, "temperature": "x"})"
            "\n";
  const std::string message = Loader{}.error(file);
  EXPECT_THAT(message, HasSubstr("120 faults in the prompt file"));
  EXPECT_THAT(message, HasSubstr("prompts.jsonl:17: "));
  EXPECT_THAT(message, HasSubstr("and 70 more"));
  EXPECT_THAT(message, Not(HasSubstr("prompts.jsonl:18: ")));
  EXPECT_THAT(message, HasSubstr("--skip-bad-prompts"));
}

TEST(PromptBatch, SkippedLinesGetIdsOfTheirOwn) {
  Loader loader;
  loader.policy = BadPrompts::kSkip;
  const PromptBatch batch = loader.load(
      "{\"id\": \"line-2\", \"prompt\": \"x\"}\nnonsense\n"
      "{\"id\": \"kept\", \"prompt\": \"\"}\n{\"id\": \"line-2\", \"prompt\": \"x\"}\n");
  std::vector<std::string> ids;
  for (const Request& request : batch.requests) ids.push_back(request.id);
  EXPECT_THAT(ids, ElementsAre("line-2", "line-2+", "kept", "line-4"));
  EXPECT_THAT(batch.requests[3].invalid_reason, HasSubstr("used before, in line 1"));
}

TEST(PromptBatch, EmptyAndUnreadableFiles) {
  EXPECT_THAT(Loader{}.error(""), HasSubstr("has no requests"));
  EXPECT_THAT(Loader{}.error("\n \n"), HasSubstr("has no requests"));
  const testing::TempDir dir;
  for (const auto& path : {dir / "absent.jsonl", dir.path()})
    EXPECT_THROW(load_prompt_batch(path, tiny(), tiny_template(), {}, 100, 100, BadPrompts::kSkip),
                 Error);
}

TEST(PromptBatch, ByteOrderMarkIsAFault) {
  const std::string message = Loader{}.error("\xEF\xBB\xBF{\"id\": \"a\", \"prompt\": \"x\"}\n");
  EXPECT_THAT(message, AllOf(HasSubstr("prompts.jsonl:1: "), HasSubstr("byte order mark"),
                             HasSubstr("1 fault in")));
}

TEST(PromptBatch, LimitTakesTheFirstRequests) {
  Loader loader;
  loader.config.prompts.limit = 1;
  const PromptBatch batch = loader.load("\n{\"id\": \"a\", \"prompt\": \"x\"}\nnonsense\n");
  EXPECT_EQ(batch.requests.size(), 1u);
  EXPECT_EQ(batch.num_lines, 3);
}

TEST(PromptBatch, TenMegabyteLine) {
  Loader loader;
  loader.max_context = 1 << 24;
  std::string text = "{\"id\": \"big\", \"prompt\": \"";
  while (text.size() < (10u << 20)) text += "The quick brown fox, 1984! ";
  const PromptBatch batch = loader.load(text + "\"}");
  EXPECT_GT(batch.requests[0].prompt_ids.size(), 1000000u);
}

TEST(PromptBatch, ContextBorder) {
  Loader loader;
  loader.max_context = 4;
  EXPECT_THAT(loader.load(R"({"id": "a", "tokens": [1, 2, 3], "max_tokens": 1})").warnings,
              IsEmpty());
  // More than fits is allowed and ends by length.
  EXPECT_THAT(loader.load(R"({"id": "a", "tokens": [1, 2, 3], "max_tokens": 2})").warnings,
              ElementsAre(HasSubstr("context limit of 4 tokens")));
  EXPECT_THAT(loader.error(R"({"id": "a", "tokens": [1, 2, 3, 4]})"), HasSubstr("no room"));
}

TEST(PromptBatch, ThinkingIsKnownFromThePrompt) {
  const PromptBatch batch =
      Loader{}.load(R"({"id": "1", "prompt": "<|im_start|>assistant\n<think>\n"})"
                    "\n"
                    R"({"id": "2", "prompt": "<|im_start|>assistant\n<think>\n\n</think>\n\n"})"
                    "\n"
                    R"({"id": "3", "prompt": "about <think><|im_end|>\n<|im_start|>assistant\n"})"
                    "\n"
                    R"({"id": "4", "tokens": [4094, 7]})"
                    "\n"
                    R"({"id": "5", "messages": [{"role": "user", "content": "<think>"}]})");
  std::vector<bool> thinking;
  for (const Request& request : batch.requests) thinking.push_back(request.thinking);
  EXPECT_THAT(thinking, ElementsAre(true, false, false, true, false));
}

TEST(PromptBatch, WarnsOfThinkingTheTemplateCannotSwitch) {
  Loader loader;
  loader.config.prompts.thinking = true;
  const std::string line = R"({"id": "a", "messages": [{"role": "user", "content": "x"}]})";
  const PromptBatch batch = loader.load(line);
  EXPECT_THAT(batch.warnings, ElementsAre(HasSubstr("thinking is on for 1 requests")));
  EXPECT_FALSE(batch.requests[0].thinking);
}

TEST(PromptBatch, LinesMaySwitchThinking) {
  const testing::TempDir dir;
  testing::write_text(dir / "chat_template.jinja",
                      testing::read_text(testing::source_dir() / "tests/prompts/qwen_style.jinja"));
  Loader loader;
  loader.chat = ChatTemplate::detect(dir.path());
  const std::string messages = R"("messages": [{"role": "user", "content": "x"}])";
  const PromptBatch batch = loader.load(
      R"({"id": "1", )" + messages + "}\n" + R"({"id": "2", )" + messages +
      R"(, "chat_template_kwargs": {"enable_thinking": true, "reasoning_effort": "medium"}})");
  EXPECT_FALSE(batch.requests[0].thinking);
  EXPECT_TRUE(batch.requests[1].thinking);
  EXPECT_EQ(batch.requests[1].prompt_text,
            "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n<think>\n");
}

TEST(PromptBatch, WarnsOfSpecialTokensInsideMessages) {
  const PromptBatch batch =
      Loader{}.load(R"({"id": "a", "messages": [{"role": "user", "content": "x<|im_end|>y"}]})");
  EXPECT_THAT(batch.warnings, ElementsAre(HasSubstr("spell special tokens")));
}

TEST(PromptBatch, ExactlyOneBos) {
  testing::TokenizerSpec spec = testing::deepseek_spec();
  spec.post_processor =
      R"({"type": "TemplateProcessing",
          "single": [{"SpecialToken": {"id": "b", "type_id": 0}}, {"Sequence": {"id": "A"}}],
          "special_tokens": {"b": {"id": "b", "ids": [256], "tokens": ["b"]}}})";
  const Tokenizer tokenizer = testing::make_tokenizer(spec);
  const testing::TempDir dir;
  testing::write_text(dir / "config.json", R"({"model_type": "deepseek_v4"})");
  Loader loader;
  loader.tokenizer = &tokenizer;
  loader.chat = ChatTemplate::detect(dir.path());
  const PromptBatch batch =
      loader.load(R"({"id": "raw", "prompt": "x"})"
                  "\n"
                  R"({"id": "rendered", "prompt": "<｜begin▁of▁sentence｜>x"})"
                  "\n"
                  R"({"id": "chat", "messages": [{"role": "user", "content": "x"}]})"
                  "\n"
                  R"({"id": "ids", "tokens": [120]})");
  for (const Request& request : batch.requests) {
    const auto& ids = request.prompt_ids;
    // Ids stay as they are given, with or without.
    EXPECT_EQ(std::count(ids.begin(), ids.end(), 256), request.id == "ids" ? 0 : 1) << request.id;
    EXPECT_EQ(ids.front(), request.id == "ids" ? 120 : 256);
  }
}

TEST(PromptBatch, AnUnknownTemplateIsTheConfigurationsFault) {
  Loader loader;
  const testing::TempDir dir;
  loader.chat = ChatTemplate::detect(dir.path());
  EXPECT_EQ(loader.load(R"({"id": "a", "prompt": "x"})").requests.size(), 1u);
  const std::string line = R"({"id": "a", "messages": [{"role": "user", "content": "x"}]})";
  try {
    loader.load(line);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfiguration);
    EXPECT_THAT(e.what(), HasSubstr("no chat template"));
  }
  // Switched off by the job file, it is the line's.
  loader.chat = ChatTemplate::none();
  loader.config.prompts.chat_template = ChatTemplateChoice::kNone;
  EXPECT_THAT(loader.error(line), HasSubstr("prompts.chat_template is none"));
}

}  // namespace
}  // namespace tandem
