#include "prompts/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "prompts/utf8.h"

namespace tandem {
namespace {

// Rust's \w and \s, which the reference library uses here.
bool is_word(char32_t c) {
  const auto u = static_cast<UChar32>(c);
  return u_isUAlphabetic(u) || u_hasBinaryProperty(u, UCHAR_JOIN_CONTROL) ||
         (U_GET_GC_MASK(u) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}
bool is_space(char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)) != 0; }

// The character that ends at `end`; moves `end` in front of it.
char32_t previous_code_point(std::string_view text, std::size_t* end) {
  do --*end;
  while (*end > 0 && (static_cast<unsigned char>(text[*end]) & 0xC0) == 0x80);
  std::size_t at = *end;
  return next_code_point(text, &at);
}

bool touches_word(std::string_view text, std::size_t begin, std::size_t end) {
  if (begin > 0 && is_word(previous_code_point(text, &begin))) return true;
  return end < text.size() && is_word(next_code_point(text, &end));
}

std::size_t strip_left(std::string_view text, std::size_t begin) {
  while (begin > 0) {
    std::size_t at = begin;
    if (!is_space(previous_code_point(text, &at))) break;
    begin = at;
  }
  return begin;
}

std::size_t strip_right(std::string_view text, std::size_t end) {
  while (end < text.size()) {
    std::size_t at = end;
    if (!is_space(next_code_point(text, &at))) break;
    end = at;
  }
  return end;
}

}  // namespace

void AddedTokenMatcher::add(AddedToken token) {
  std::uint32_t node = 0;
  for (const char c : token.content) {
    const auto byte = static_cast<unsigned char>(c);
    const auto& children = nodes_[node].children;
    const auto it = std::find_if(children.begin(), children.end(),
                                 [byte](const auto& child) { return child.first == byte; });
    if (it != children.end()) {
      node = it->second;
    } else {
      const auto created = static_cast<std::uint32_t>(nodes_.size());
      nodes_[node].children.emplace_back(byte, created);
      nodes_.emplace_back();
      node = created;
    }
  }
  nodes_[node].token = static_cast<std::int32_t>(tokens_.size());
  begins_token_[static_cast<unsigned char>(token.content.front())] = true;
  tokens_.push_back(std::move(token));
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view text, std::size_t at,
                                                std::size_t* length) const {
  const AddedToken* found = nullptr;
  std::uint32_t node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto& children = nodes_[node].children;
    const auto it = std::find_if(children.begin(), children.end(),
                                 [byte](const auto& child) { return child.first == byte; });
    if (it == children.end()) break;
    node = it->second;
    if (nodes_[node].token >= 0) {
      found = &tokens_[static_cast<std::size_t>(nodes_[node].token)];
      *length = i + 1 - at;
    }
  }
  return found;
}

void AddedTokenMatcher::split(std::string_view text, std::vector<Segment>* segments) const {
  std::size_t done = 0;  // everything in front is in a segment
  for (std::size_t at = 0; at < text.size();) {
    std::size_t length = 0;
    const AddedToken* token = begins_token_[static_cast<unsigned char>(text[at])]
                                  ? longest_at(text, at, &length)
                                  : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at;
    std::size_t end = at + length;
    at = end;
    if (token->single_word && touches_word(text, begin, end)) continue;
    if (token->lstrip) begin = std::max(strip_left(text, begin), done);
    if (token->rstrip) end = strip_right(text, end);
    if (begin > done) segments->push_back({text.substr(done, begin - done), std::nullopt});
    segments->push_back({text.substr(begin, end - begin), token->id});
    done = end;
    at = end;
  }
  if (done < text.size()) segments->push_back({text.substr(done), std::nullopt});
}

}  // namespace tandem
