#include "prompts/chat_template.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "prompts/chat_families.h"
#include "prompts/utf8.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kRemedy =
    "render the prompts beforehand and give them as \"prompt\" (prompts.chat_template: none)";

std::optional<std::string> read_if_present(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  if (!in)
    throw Error(ExitCode::kConfiguration,
                {.what = "cannot be read", .where = path.string(), .expected = {}, .remedy = {}});
  return std::move(out).str();
}

json parse_object(const std::string& text, const fs::path& path) {
  json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object())
    throw Error(ExitCode::kConfiguration, {.what = "not a JSON object",
                                           .where = path.string(),
                                           .expected = {},
                                           .remedy = "download the file again"});
  return root;
}

// chat_template is a string, or a list of named templates of which "default" counts.
std::optional<std::string> template_of_config(const fs::path& path) {
  const std::optional<std::string> text = read_if_present(path);
  if (!text) return std::nullopt;
  const json root = parse_object(*text, path);
  const auto it = root.find("chat_template");
  if (it == root.end() || it->is_null()) return std::nullopt;
  if (it->is_string()) return it->get<std::string>();
  if (it->is_array())
    for (const json& entry : *it)
      if (entry.is_object() && entry.value("name", json()) == "default" &&
          entry.value("template", json()).is_string())
        return entry["template"].get<std::string>();
  throw Error(ExitCode::kConfiguration,
              {.what = "chat_template has an unknown form",
               .where = path.string(),
               .expected = "a string, or a list with an entry named \"default\"",
               .remedy = {}});
}

bool is_deepseek_v4(const fs::path& config) {
  const std::optional<std::string> text = read_if_present(config);
  return text && parse_object(*text, config).value("model_type", json()) == "deepseek_v4";
}

}  // namespace

std::string_view python_strip(std::string_view text) {
  const auto is_space = [](char32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
  };
  std::size_t begin = 0;
  std::size_t end = 0;
  bool in_text = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t from = at;
    if (is_space(next_code_point(text, &at))) continue;
    if (!in_text) begin = from;
    in_text = true;
    end = at;
  }
  return text.substr(begin, end - begin);
}

ChatTemplate ChatTemplate::none() {
  ChatTemplate out;
  out.reason_ = "prompts.chat_template is none";
  return out;
}

ChatTemplate ChatTemplate::detect(const fs::path& checkpoint_dir) {
  ChatTemplate out;
  // The encoder goes first: it is the publisher's own, while a Jinja template beside it is a
  // re-creation by whoever converted the checkpoint.
  if (const auto encoder = read_if_present(checkpoint_dir / "encoding" / "encoding_dsv4.py")) {
    out.renderer_ = make_deepseek_v4(*encoder);
    if (out.renderer_) return out;
    out.reason_ =
        fmt::format("{}: encoding/encoding_dsv4.py is not a known DeepSeek-V4 encoder; {}",
                    checkpoint_dir.string(), kRemedy);
    return out;
  }
  std::optional<std::string> jinja = read_if_present(checkpoint_dir / "chat_template.jinja");
  if (!jinja) jinja = template_of_config(checkpoint_dir / "tokenizer_config.json");
  if (jinja) {
    out.renderer_ = make_qwen38(*jinja);
    if (!out.renderer_) out.renderer_ = make_chatml(*jinja);
    if (!out.renderer_)
      out.reason_ = fmt::format(
          "{}: the chat template is of no known family (chatml, qwen3.8, "
          "deepseek-v4); {}",
          checkpoint_dir.string(), kRemedy);
    return out;
  }
  if (is_deepseek_v4(checkpoint_dir / "config.json")) {
    out.renderer_ = make_deepseek_v4({});
    return out;
  }
  out.reason_ =
      fmt::format("{}: the checkpoint has no chat template; {}", checkpoint_dir.string(), kRemedy);
  return out;
}

RenderedPrompt ChatTemplate::render(const Conversation& conversation) const {
  if (!renderer_) refuse_conversation("messages cannot be rendered: " + reason_);
  if (conversation.messages.empty()) refuse_conversation("messages is empty");
  return renderer_->render(conversation);
}

}  // namespace tandem
