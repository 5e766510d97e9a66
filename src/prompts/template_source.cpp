#include "prompts/template_source.h"

#include <charconv>

#include "prompts/utf8.h"

namespace tandem {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

// Appends what the escape at source[*at] (behind the backslash) stands for.
bool read_escape(std::string_view source, std::size_t* at, std::string* out) {
  const char c = source[(*at)++];
  switch (c) {
    case 'n':
      out->push_back('\n');
      return true;
    case 't':
      out->push_back('\t');
      return true;
    case 'r':
      out->push_back('\r');
      return true;
    case '\n':
      return true;
    case '\\':
    case '\'':
    case '"':
      out->push_back(c);
      return true;
    case 'u':
    case 'x': {
      const std::string_view digits = source.substr(*at, c == 'u' ? 4 : 2);
      std::uint32_t code_point = 0;
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), code_point, 16);
      const bool surrogate = code_point >= 0xD800 && code_point <= 0xDFFF;
      if (error != std::errc() || end != digits.data() + digits.size() || surrogate ||
          digits.size() != (c == 'u' ? 4u : 2u))
        return false;
      append_utf8(code_point, out);
      *at += digits.size();
      return true;
    }
    default:
      return false;
  }
}

// End of the tag that closes with `close`, not counting what is quoted.
std::size_t find_close(std::string_view source, std::size_t at, std::string_view close) {
  while (at < source.size()) {
    if (source.substr(at).starts_with(close)) return at;
    if (source[at] == '\'' || source[at] == '"') {
      const std::optional<Literal> literal = literal_at(source, at);
      if (!literal) return std::string_view::npos;
      at = literal->end;
    } else {
      ++at;
    }
  }
  return std::string_view::npos;
}

// lstrip_blocks: blanks between the beginning of a line and a statement vanish.
std::string_view without_indent(std::string_view text) {
  const std::size_t last = text.find_last_not_of(" \t");
  if (last == std::string_view::npos || text[last] == '\n')
    return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
  return text;
}

}  // namespace

std::optional<Literal> literal_at(std::string_view source, std::size_t at) {
  if (at >= source.size() || (source[at] != '"' && source[at] != '\'')) return std::nullopt;
  const bool triple =
      source.size() - at >= 3 && source[at + 1] == source[at] && source[at + 2] == source[at];
  const std::string_view quote = source.substr(at, triple ? 3 : 1);
  Literal literal{{}, at, at + quote.size()};
  std::size_t i = literal.end;
  while (i < source.size()) {
    if (source.substr(i).starts_with(quote)) {
      literal.end = i + quote.size();
      return literal;
    }
    if (source[i] != '\\') {
      literal.value.push_back(source[i++]);
    } else if (++i >= source.size() || !read_escape(source, &i, &literal.value)) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<Literal> joined_literals_at(std::string_view source, std::size_t at) {
  std::optional<Literal> all;
  bool parenthesis = false;
  while (at < source.size()) {
    const char c = source[at];
    if (c == '#') {
      at = std::min(source.find('\n', at), source.size());
    } else if (kBlanks.find(c) != std::string_view::npos) {
      // Outside parentheses a Python expression ends with its line.
      if (c == '\n' && all && !parenthesis) return all;
      ++at;
    } else if (c == '(' && !all && !parenthesis) {
      parenthesis = true;
      ++at;
    } else if (c == '"' || c == '\'') {
      const std::optional<Literal> literal = literal_at(source, at);
      if (!literal) return std::nullopt;
      if (!all) all = Literal{{}, at, at};
      all->value += literal->value;
      all->end = at = literal->end;
    } else {
      return all;
    }
  }
  return all;
}

std::optional<std::vector<TemplateItem>> split_template(std::string_view source) {
  std::vector<TemplateItem> items;
  bool strip_next = false;    // the tag before ended in "-"
  bool newline_next = false;  // trim_blocks: one line break behind a statement vanishes
  std::size_t at = 0;
  while (at <= source.size()) {
    std::size_t open = source.find('{', at);
    while (open != std::string_view::npos &&
           (open + 1 >= source.size() ||
            std::string_view("{%#").find(source[open + 1]) == std::string_view::npos))
      open = source.find('{', open + 1);
    std::string_view text = source.substr(at, open == std::string_view::npos ? open : open - at);
    const char type = open == std::string_view::npos ? '\0' : source[open + 1];
    if (newline_next && text.starts_with('\n')) text.remove_prefix(1);
    if (strip_next) text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
    const bool strips = type != '\0' && source.substr(open + 2).starts_with('-');
    if (strips) {
      text = text.substr(0, text.find_last_not_of(kBlanks) + 1);
    } else if (type == '%' || type == '#') {
      text = without_indent(text);
    }
    if (!text.empty()) items.push_back({TemplateItem::Kind::kText, std::string(text)});
    if (type == '\0') return items;

    const std::string_view close = type == '{' ? "}}" : type == '%' ? "%}" : "#}";
    const std::size_t begin = open + (strips ? 3 : 2);
    const std::size_t end =
        type == '#' ? source.find(close, begin) : find_close(source, begin, close);
    if (end == std::string_view::npos) return std::nullopt;
    std::string_view tag = source.substr(begin, end - begin);
    strip_next = tag.ends_with('-');
    if (strip_next) tag.remove_suffix(1);
    newline_next = type != '{';
    if (type != '#')
      items.push_back(
          {type == '{' ? TemplateItem::Kind::kExpression : TemplateItem::Kind::kStatement,
           std::string(trim(tag))});
    at = end + 2;
  }
  return items;
}

std::vector<Literal> literals_of(const std::vector<TemplateItem>& items) {
  std::vector<Literal> literals;
  for (const TemplateItem& item : items) {
    if (item.kind == TemplateItem::Kind::kText) continue;
    for (std::size_t at = 0; at < item.source.size();) {
      const std::optional<Literal> literal = literal_at(item.source, at);
      at = literal ? literal->end : at + 1;
      if (literal) literals.push_back(*literal);
    }
  }
  return literals;
}

}  // namespace tandem
