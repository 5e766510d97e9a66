// Reading of Jinja and Python source, as far as needed to recognise a template and to take its
// fixed texts out of it. Nothing is executed.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

// A quoted string in source text. Escapes are resolved; `begin` and `end` enclose the quotes.
struct Literal {
  std::string value;
  std::size_t begin = 0;
  std::size_t end = 0;
};

// The literal whose opening quote is at `at` ('...', "...", """..."""). Empty if it never ends or
// uses an escape that is not \n \t \r \\ \' \" \uXXXX \xXX or a line continuation.
std::optional<Literal> literal_at(std::string_view source, std::size_t at);
// Python: the literals from `at` on that stand side by side count as one. White space, comments and
// an opening parenthesis may come first.
std::optional<Literal> joined_literals_at(std::string_view source, std::size_t at);

// A Jinja template as a list: the text between tags, and the tags, with the white space rules of
// trim_blocks and lstrip_blocks (which the reference library sets) applied to the text.
struct TemplateItem {
  enum class Kind { kText, kStatement, kExpression } kind = Kind::kText;
  std::string source;  // of a tag, without delimiters and outer blanks
};
std::optional<std::vector<TemplateItem>> split_template(std::string_view source);

// All literals in the tags of a template, in order; begin and end count within their tag.
std::vector<Literal> literals_of(const std::vector<TemplateItem>& items);

}  // namespace tandem
