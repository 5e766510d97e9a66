#include "prompts/prompt_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "prompts/chat_json.h"
#include "prompts/python_json.h"
#include "prompts/utf8.h"

namespace tandem {
namespace {

using json = nlohmann::ordered_json;

// Fields of other programs' requests that may be present as long as they ask for nothing.
struct NeutralField {
  const char* key;
  const char* neutral;  // JSON; nullptr: any value, the field does not concern the result
  const char* advice;
};
constexpr NeutralField kNeutralFields[] = {
    {"n", "1", "give the prompt several lines with different seeds"},
    {"best_of", "1", "give the prompt several lines with different seeds"},
    {"stream", "false", "results are in the output file"},
    {"echo", "false", "prompt and completion are both in the output file"},
    {"logprobs", "false", "set output.logprobs in the job file"},
    {"top_logprobs", "0", "set output.logprobs in the job file"},
    {"presence_penalty", "0", "penalties are not supported"},
    {"frequency_penalty", "0", "penalties are not supported"},
    {"repetition_penalty", "1", "penalties are not supported"},
    {"logit_bias", "{}", "logit_bias is not supported"},
    {"suffix", "\"\"", "suffix is not supported"},
    {"response_format", R"({"type":"text"})", "constrained output is not supported"},
    {"tool_choice", "\"auto\"", "forced tool calls are not supported"},
    {"stream_options", nullptr, ""},
    {"parallel_tool_calls", nullptr, ""},
    {"user", nullptr, ""},
    {"store", nullptr, ""},
    {"service_tier", nullptr, ""},
};

class LineParser {
 public:
  explicit LineParser(std::vector<std::string>* faults) : faults_(faults) {}

  PromptLine run(std::string_view text) {
    if (const std::size_t at = find_invalid_utf8(text); at != std::string_view::npos) {
      fault("bad UTF-8 at column {} (byte 0x{:02X})", at + 1, static_cast<unsigned char>(text[at]));
      return std::move(line_);
    }
    if (json_depth(text) > kMaxJsonDepth) {
      fault("JSON nested deeper than {} levels", kMaxJsonDepth);
      return std::move(line_);
    }
    const std::optional<json> root = parse(text);
    if (!root) return std::move(line_);
    if (!root->is_object()) {
      fault("not a JSON object");
    } else if (root->contains("custom_id") || root->contains("body") || root->contains("url")) {
      read_openai(*root);
    } else {
      read_plain(*root);
    }
    return std::move(line_);
  }

 private:
  template <typename... Args>
  void fault(fmt::format_string<Args...> format, Args&&... args) {
    faults_->push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  std::optional<json> parse(std::string_view text) {
    // The parser would let the last of two equal keys win.
    std::vector<std::set<std::string>> open_objects;
    const auto watch = [&](int, json::parse_event_t event, json& parsed) {
      if (event == json::parse_event_t::object_start) {
        open_objects.emplace_back();
      } else if (event == json::parse_event_t::object_end) {
        open_objects.pop_back();
      } else if (event == json::parse_event_t::key &&
                 !open_objects.back().insert(parsed.get<std::string>()).second) {
        fault("key {} occurs twice", parsed.dump());
      }
      return true;
    };
    try {
      return json::parse(text, watch);
    } catch (const json::parse_error& e) {
      // "[json.exception.parse_error.101] parse error at line 1, column 8: syntax error ..."
      std::string_view message = e.what();
      if (const std::size_t at = message.find(": "); at != std::string_view::npos)
        message.remove_prefix(at + 2);
      fault("bad JSON at column {}: {}", e.byte, message);
    } catch (const json::exception& e) {
      fault("bad JSON: {}", e.what());
    }
    return std::nullopt;
  }

  void read_plain(const json& root) {
    for (const auto& [key, value] : root.items()) {
      if (value.is_null()) continue;
      if (key == "id") {
        read_id(key, value);
      } else if (key == "tokens") {
        set_input(PromptLine::Input::kTokens);
        read_tokens(key, value);
      } else if (!read_input(key, value) && !read_extra(key, value) && !read_option(key, value)) {
        fault("unknown field \"{}\"", key);
      }
    }
    check_required("id", "\"prompt\", \"messages\" or \"tokens\"");
  }

  void read_openai(const json& root) {
    const json* body = nullptr;
    std::string url;
    for (const auto& [key, value] : root.items()) {
      if (value.is_null()) continue;
      if (key == "custom_id") {
        read_id(key, value);
      } else if (key == "method") {
        if (value != "POST") fault("method is {}; expected \"POST\"", value.dump());
      } else if (key == "url") {
        url = value.is_string() ? value.get<std::string>() : value.dump();
      } else if (key == "body") {
        body = &value;
      } else if (!read_extra(key, value)) {
        fault("unknown field \"{}\"", key);
      }
    }
    const bool chat = url == "/v1/chat/completions";
    if (!chat && url != "/v1/completions")
      fault("url is \"{}\"; expected /v1/chat/completions or /v1/completions", url);
    if (!root.contains("method")) fault("method is missing; expected \"POST\"");
    if (body == nullptr || !body->is_object()) {
      fault("body is missing or not an object");
    } else {
      for (const auto& [key, value] : body->items())
        if (!value.is_null()) read_body_field(key, value, chat);
    }
    check_required("custom_id", chat ? "body.messages" : "body.prompt");
  }

  void read_body_field(const std::string& key, const json& value, bool chat) {
    if (key == "model") {
      line_.model = value.is_string() ? value.get<std::string>() : value.dump();
    } else if (key == "max_completion_tokens") {
      line_.sampling.max_tokens = whole<int>(key, value, 1, kMaxInt);
    } else if (key == "metadata") {
      read_tags(key, value);
    } else if (chat ? key == "prompt" : key == "messages") {
      fault("body.{} does not belong to this url", key);
    } else if (key == "prompt" && value.is_array()) {
      read_prompt_list(value);
    } else if (!read_input(key, value) && !read_option(key, value) && !read_neutral(key, value)) {
      fault("body.{} is not supported", key);
    }
  }

  // /v1/completions allows a list: of token ids, or of one text.
  void read_prompt_list(const json& value) {
    if (value.size() == 1 && value[0].is_string()) {
      read_input("prompt", value[0]);
    } else {
      set_input(PromptLine::Input::kTokens);
      read_tokens("body.prompt", value);
    }
  }

  bool read_input(const std::string& key, const json& value) {
    if (key == "prompt") {
      set_input(PromptLine::Input::kText);
      if (const auto text = string_of(key, value)) line_.text = *text;
    } else if (key == "messages") {
      set_input(PromptLine::Input::kMessages);
      line_.conversation.messages = read_messages(value.dump(), faults_);
    } else {
      return false;
    }
    return true;
  }

  void set_input(PromptLine::Input input) {
    if (line_.input != PromptLine::Input::kNone)
      fault("more than one of prompt, messages and tokens");
    line_.input = input;
  }

  void check_required(const char* id_key, const char* input_keys) {
    if (!has_id_) fault("{} is missing", id_key);
    if (line_.input == PromptLine::Input::kNone) fault("no prompt; expected {}", input_keys);
    if (line_.input != PromptLine::Input::kMessages &&
        (!line_.conversation.tools.empty() || has_template_options_))
      fault("tools and template arguments need messages");
  }

  void read_id(const std::string& key, const json& value) {
    has_id_ = true;
    const auto text = string_of(key, value);
    if (text && text->empty()) fault("{} is empty", key);
    if (text) line_.id = *text;
  }

  void read_tokens(const std::string& path, const json& value) {
    if (!value.is_array()) return fault("{} is not a list of token ids", path);
    line_.tokens.reserve(value.size());
    for (std::size_t i = 0; i < value.size(); ++i) {
      const auto id = whole<std::int32_t>(fmt::format("{}[{}]", path, i), value[i], 0, kMaxInt);
      if (!id) return;  // one bad id is enough to find the place
      line_.tokens.push_back(*id);
    }
    if (value.empty()) fault("{} is empty", path);
  }

  bool read_extra(const std::string& key, const json& value) {
    if (key == "tags") {
      read_tags(key, value);
    } else if (key == "reference") {
      line_.reference = string_of(key, value);
    } else {
      return false;
    }
    return true;
  }

  void read_tags(const std::string& key, const json& value) {
    if (!value.is_string() && !value.is_object())
      return fault("{} is neither a string nor a map", key);
    line_.tags = nlohmann::json::parse(value.dump()).dump();  // sorted keys
  }

  bool read_option(const std::string& key, const json& value) {
    SamplingOverrides& sampling = line_.sampling;
    if (key == "max_tokens") {
      sampling.max_tokens = whole<int>(key, value, 1, kMaxInt);
    } else if (key == "temperature") {
      sampling.temperature = number(key, value, 0, 100);
    } else if (key == "top_p") {
      sampling.top_p = number(key, value, 0, 1);
      if (sampling.top_p == 0.0) fault("top_p is 0; expected a number above 0 and up to 1");
    } else if (key == "min_p") {
      sampling.min_p = number(key, value, 0, 1);
      if (sampling.min_p == 1.0) fault("min_p is 1; expected a number from 0 to below 1");
    } else if (key == "top_k") {
      sampling.top_k = whole<int>(key, value, -1, kMaxInt);
      if (sampling.top_k == -1) sampling.top_k = 0;  // "off" in vLLM's dialect
    } else if (key == "seed") {
      sampling.seed =
          whole<std::uint64_t>(key, value, 0, std::numeric_limits<std::uint64_t>::max());
    } else if (key == "stop") {
      read_stop(value);
    } else if (key == "ignore_eos") {
      sampling.ignore_eos = flag(key, value);
    } else if (key == "tools") {
      line_.conversation.tools = read_tools(value.dump(), faults_);
    } else if (key == "reasoning_effort") {
      has_template_options_ = true;
      line_.conversation.options.reasoning_effort = string_of(key, value);
    } else if (key == "chat_template_kwargs") {
      has_template_options_ = true;
      read_template_options(value);
    } else {
      return false;
    }
    return true;
  }

  void read_stop(const json& value) {
    std::vector<std::string> stops;
    const json list = value.is_string() ? json::array({value}) : value;
    if (!list.is_array()) return fault("stop is neither a string nor a list of strings");
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto stop = string_of(fmt::format("stop[{}]", i), list[i]);
      if (stop && stop->empty()) fault("stop[{}] is empty", i);
      if (stop && !stop->empty()) stops.push_back(*stop);
    }
    line_.sampling.stop = std::move(stops);
  }

  void read_template_options(const json& value) {
    if (!value.is_object()) return fault("chat_template_kwargs is not an object");
    ChatOptions& options = line_.conversation.options;
    for (const auto& [key, option] : value.items()) {
      const std::string path = "chat_template_kwargs." + key;
      if (key == "enable_thinking" || key == "thinking") {
        line_.thinking = flag(path, option);
      } else if (key == "preserve_thinking") {
        options.preserve_thinking = flag(path, option);
      } else if (key == "reasoning_effort") {
        options.reasoning_effort = string_of(path, option);
      } else {
        fault("{} is unknown; expected enable_thinking, reasoning_effort or preserve_thinking",
              path);
      }
    }
  }

  bool read_neutral(const std::string& key, const json& value) {
    for (const NeutralField& field : kNeutralFields) {
      if (key != field.key) continue;
      const bool is_zero = value.is_number() && value.get<double>() == 0;
      if (field.neutral != nullptr && value != json::parse(field.neutral) &&
          !(is_zero && key == "logprobs"))
        fault("body.{} is {}; {}", key, value.dump(), field.advice);
      return true;
    }
    return false;
  }

  std::optional<std::string> string_of(const std::string& path, const json& value) {
    if (value.is_string()) return value.get<std::string>();
    fault("{} is not a string", path);
    return std::nullopt;
  }

  std::optional<bool> flag(const std::string& path, const json& value) {
    if (value.is_boolean()) return value.get<bool>();
    fault("{} is not true or false", path);
    return std::nullopt;
  }

  std::optional<double> number(const std::string& path, const json& value, double low,
                               double high) {
    if (!value.is_number()) {
      fault("{} is not a number", path);
      return std::nullopt;
    }
    const auto x = value.get<double>();
    if (x >= low && x <= high) return x;
    fault("{} is {}; expected a number from {} to {}", path, value.dump(), low, high);
    return std::nullopt;
  }

  template <typename T>
  std::optional<T> whole(const std::string& path, const json& value, T low, T high) {
    if (!value.is_number_integer()) {
      fault("{} is not a whole number", path);
      return std::nullopt;
    }
    // One of the two readings is exact, whatever the sign.
    const bool fits = value.is_number_unsigned()
                          ? std::cmp_less_equal(value.get<std::uint64_t>(), high) &&
                                std::cmp_greater_equal(value.get<std::uint64_t>(), low)
                          : std::cmp_greater_equal(value.get<std::int64_t>(), low) &&
                                std::cmp_less_equal(value.get<std::int64_t>(), high);
    if (fits) return value.get<T>();
    fault("{} is {}; expected a whole number from {} to {}", path, value.dump(), low, high);
    return std::nullopt;
  }

  static constexpr int kMaxInt = std::numeric_limits<int>::max();

  std::vector<std::string>* faults_;
  PromptLine line_;
  bool has_id_ = false;
  bool has_template_options_ = false;
};

}  // namespace

PromptLine parse_prompt_line(std::string_view line, std::vector<std::string>* faults) {
  return LineParser(faults).run(line);
}

}  // namespace tandem
