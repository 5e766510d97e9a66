#include "config/yaml_reader.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <array>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

namespace tandem {
namespace {

// Placeholders and what stands for them while yaml-cpp reads: private-use characters (U+E000,
// U+E001), which are ordinary text to YAML. Neither moves a line.
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kPlaceholders{{
    {"{job}", "\xEE\x80\x80"},
    {"{time}", "\xEE\x80\x81"},
}};

enum class Direction { kHide, kRestore };

std::string replace_placeholders(std::string_view text, Direction direction) {
  std::string out(text);
  for (const auto& [word, stand_in] : kPlaceholders) {
    const auto from = direction == Direction::kHide ? word : stand_in;
    const auto to = direction == Direction::kHide ? stand_in : word;
    for (auto at = out.find(from); at != std::string::npos; at = out.find(from, at + to.size())) {
      out.replace(at, from.size(), to);
    }
  }
  return out;
}

// Length of the well-formed UTF-8 sequence at the front, 0 if there is none (Unicode table 3-7).
std::size_t utf8_length(std::string_view s) {
  const auto byte = [&](std::size_t i) {
    return i < s.size() ? static_cast<unsigned char>(s[i]) : 0u;
  };
  const auto tail = [&](std::size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned b0 = byte(0);
  const unsigned b1 = byte(1);
  if (b0 < 0x80) return 1;
  if (b0 >= 0xC2 && b0 <= 0xDF && tail(1)) return 2;
  if (b0 >= 0xE0 && b0 <= 0xEF && tail(1) && tail(2)) {
    const bool overlong = b0 == 0xE0 && b1 < 0xA0;
    const bool surrogate = b0 == 0xED && b1 > 0x9F;
    return overlong || surrogate ? 0 : 3;
  }
  if (b0 >= 0xF0 && b0 <= 0xF4 && tail(1) && tail(2) && tail(3)) {
    const bool overlong = b0 == 0xF0 && b1 < 0x90;
    const bool too_large = b0 == 0xF4 && b1 > 0x8F;
    return overlong || too_large ? 0 : 4;
  }
  return 0;
}

// What must be right before yaml-cpp sees the text: it guesses other encodings, and its message for
// a tab does not mention tabs.
std::vector<ErrorText> check_text(std::string_view text, const std::string& name) {
  std::vector<ErrorText> problems;
  int line = 1;
  bool indentation = true;
  bool tab = false;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    const std::size_t length = c == '\0' ? 0 : utf8_length(text.substr(i));
    if (length == 0) {
      problems.push_back(
          {fmt::format("byte 0x{:02x} is not UTF-8 text", static_cast<unsigned char>(c)),
           fmt::format("{}:{}", name, line), "a YAML file in UTF-8", ""});
      return problems;  // the rest of a binary file would only repeat this
    }
    if (c == '\n') {
      ++line;
      indentation = true;
      tab = false;
    } else if (indentation && c == '\t') {
      tab = true;
    } else if (indentation && c != ' ' && c != '\r') {
      if (tab && c != '#') {
        problems.push_back({"a tab in the indentation", fmt::format("{}:{}", name, line), "spaces",
                            "YAML does not allow tabs there"});
      }
      indentation = false;
    }
    i += length;
  }
  return problems;
}

// Notes where documents start and ignores what is in them.
class DocumentStarts : public YAML::EventHandler {
 public:
  const std::optional<int>& last_line() const { return last_line_; }

  void OnDocumentStart(const YAML::Mark& mark) override { last_line_ = mark.line + 1; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  std::optional<int> last_line_;
};

// The line where text after the first document starts. YAML::Load ignores such text, and
// YAML::LoadAll of 0.7 never returns from a leading comma.
std::optional<int> second_document_line(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  if (!parser.HandleNextDocument(starts) || !parser.HandleNextDocument(starts)) return std::nullopt;
  return starts.last_line();
}

RawValue to_raw(const YAML::Node& node, int depth = 0) {
  RawValue raw;
  switch (node.Type()) {
    case YAML::NodeType::Undefined:
    case YAML::NodeType::Null:
      break;
    case YAML::NodeType::Scalar:
      // yaml-cpp tags a plain scalar "?", a quoted one "!", and keeps explicit tags: !!str makes a
      // text of what follows, and any other tag is as good as a quote, since no key takes it.
      raw.kind = node.Tag() == "?" || node.Tag().empty() ? RawValue::Kind::kPlain
                                                         : RawValue::Kind::kQuoted;
      raw.text = replace_placeholders(node.Scalar(), Direction::kRestore);
      break;
    case YAML::NodeType::Sequence:
      raw.kind = RawValue::Kind::kList;
      // No key takes lists in lists; an alias can make one that contains itself.
      if (depth == 0) {
        for (const auto& item : node) raw.items.push_back(to_raw(item, depth + 1));
      }
      break;
    case YAML::NodeType::Map:
      raw.kind = RawValue::Kind::kMap;
      break;
  }
  return raw;
}

// The pairs of a map in the file's order. yaml-cpp keeps duplicates in the list but answers
// look-ups with one of them, silently: hence no look-ups here.
std::vector<YamlItem> read_map(const YAML::Node& map, const std::string& name,
                               const std::string& prefix, std::vector<ErrorText>& problems) {
  std::vector<YamlItem> items;
  std::map<std::string, int> first_line;
  for (const auto& pair : map) {
    const int line = pair.first.Mark().line + 1;
    if (!pair.first.IsScalar()) {
      problems.push_back(
          {"a key that is not a word", fmt::format("{}:{}", name, line), "'key: value'", ""});
      continue;
    }
    YamlItem item{pair.first.Scalar(), line, to_raw(pair.second), {}};
    const auto where = fmt::format("{}:{}: {}{}", name, line, prefix, item.key);
    const auto [first, inserted] = first_line.emplace(item.key, line);
    if (!inserted) {
      problems.push_back({"duplicate key", where, "each key once",
                          fmt::format("the first is in line {}", first->second)});
      continue;
    }
    if (prefix.empty() && pair.second.IsMap()) {
      item.children = read_map(pair.second, name, item.key + ".", problems);
    }
    items.push_back(std::move(item));
  }
  return items;
}

}  // namespace

YamlDocument read_yaml(std::string_view text, const std::string& name) {
  YamlDocument document;
  document.problems = check_text(text, name);
  if (!document.problems.empty()) return document;
  try {
    const auto protected_text = replace_placeholders(text, Direction::kHide);
    const auto root = YAML::Load(protected_text);
    if (const auto line = second_document_line(protected_text)) {
      document.problems.push_back({"text after the end of the YAML document",
                                   fmt::format("{}:{}", name, *line), "one document",
                                   "remove what follows it, or the '---'"});
    } else if (root.IsNull()) {
      document.problems.push_back({"the file is empty", name, "a map of keys", ""});
    } else if (!root.IsMap()) {
      document.problems.push_back({describe(to_raw(root)) + " at the top level", name,
                                   "a map of keys, 'model: {path: ...}'", ""});
    } else {
      document.items = read_map(root, name, "", document.problems);
    }
  } catch (const YAML::Exception& e) {
    document.problems.push_back({"not valid YAML: " + e.msg,
                                 fmt::format("{}:{}", name, e.mark.line + 1), "",
                                 "texts with ': ', ' #' or one of {}[]@%&*! need quotes"});
  }
  return document;
}

RawValue read_yaml_value(const std::string& text) {
  try {
    return to_raw(YAML::Load(replace_placeholders(text, Direction::kHide)));
  } catch (const YAML::Exception& e) {
    throw Error(ExitCode::kConfiguration, {"not valid YAML: " + e.msg, "", "", "quote the value"});
  }
}

}  // namespace tandem
