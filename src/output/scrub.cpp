#include "output/scrub.h"

#include <algorithm>
#include <cctype>

namespace tandem {
namespace {

constexpr std::string_view kHost = "<host>";
constexpr std::string_view kUser = "<user>";
constexpr std::string_view kAddress = "<address>";
constexpr std::string_view kPath = "<path>";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// What separates the pieces of a line; everything else may be part of a path or an address.
bool is_separator(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("\"'`,;=()[]{}<>|").find(c) != std::string_view::npos;
}

// Length of a dotted IPv4 address (with prefix length or port) at the start of `text`; 0 if none.
std::size_t ipv4_length(std::string_view text) {
  std::size_t at = 0;
  for (int group = 0; group < 4; ++group) {
    if (group > 0) {
      if (at >= text.size() || text[at] != '.') return 0;
      ++at;
    }
    const auto begin = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    if (at == begin || at - begin > 3) return 0;
  }
  if (at < text.size() && (is_word(text[at]) || text[at] == '.')) return 0;
  while (at < text.size() && (is_digit(text[at]) || text[at] == ':' || text[at] == '/')) ++at;
  return at;
}

// IPv6 addresses, GIDs and MAC addresses: hex groups with "::" or at least five colons. Times
// ("12:34:56") and PCI addresses ("0000:01:00.0") have fewer.
std::size_t colon_address_length(std::string_view text) {
  std::size_t at = 0;
  int colons = 0;
  bool doubled = false;
  bool digits = false;
  while (at < text.size() && (is_hex(text[at]) || text[at] == ':')) {
    if (text[at] == ':') {
      ++colons;
      doubled = doubled || (at > 0 && text[at - 1] == ':');
    } else {
      digits = true;
    }
    ++at;
  }
  if (at < text.size() && is_word(text[at])) return 0;
  return digits && colons >= 2 && (doubled || colons >= 5) ? at : 0;
}

bool has_extension(std::string_view piece) {
  const auto name = piece.substr(piece.rfind('/') + 1);
  const auto dot = name.rfind('.');
  return dot != std::string_view::npos && dot > 0 && dot + 1 < name.size() &&
         std::isalpha(static_cast<unsigned char>(name[dot + 1])) != 0;
}

// Where a path begins in a piece free of separators, npos if it holds none: at the start, or behind
// a colon ("file:/x", "PATH:/a:/b", "tcp://...", "host:/x").
std::size_t path_begin(std::string_view piece) {
  const auto starts_path = [](std::string_view text) {
    return (text.starts_with("/") && text.size() > 1) || text.starts_with("~/") ||
           text.starts_with("./") || text.starts_with("../");
  };
  std::size_t begin = 0;
  while (true) {
    const auto rest = piece.substr(begin);
    if (starts_path(rest)) return begin;
    const auto colon = piece.find(':', begin);
    if (colon == std::string_view::npos) break;
    begin = colon + 1;
  }
  if (piece.find('/') != std::string_view::npos && has_extension(piece)) return 0;
  return std::string_view::npos;
}

std::string scrub_piece(std::string_view piece) {
  const auto path = path_begin(piece);
  if (path != std::string_view::npos) {
    return scrub_piece(piece.substr(0, path)) + std::string(kPath);
  }
  std::string out;
  std::size_t at = 0;
  while (at < piece.size()) {
    const bool at_word_start = at == 0 || !(is_word(piece[at - 1]) || piece[at - 1] == '.');
    const auto rest = piece.substr(at);
    const auto length = at_word_start ? std::max(ipv4_length(rest), colon_address_length(rest)) : 0;
    if (length > 0) {
      out += kAddress;
      at += length;
    } else {
      out += piece[at++];
    }
  }
  return out;
}

}  // namespace

void Scrubber::add(std::string_view word, std::string_view replacement) {
  if (word.empty() || word == "localhost") return;
  names_.push_back({std::string(word), replacement});
  // Longest first, so that "node1.lab.org" is not left as "<host>.lab.org".
  std::stable_sort(names_.begin(), names_.end(),
                   [](const Name& a, const Name& b) { return a.word.size() > b.word.size(); });
}

void Scrubber::add_host(std::string_view host) {
  add(host, kHost);
  const auto dot = host.find('.');
  if (dot != std::string_view::npos) add(host.substr(0, dot), kHost);
}

void Scrubber::add_user(std::string_view user) { add(user, kUser); }

std::string Scrubber::hide_names(std::string_view text) const {
  std::string out;
  std::size_t at = 0;
  while (at < text.size()) {
    const bool at_word_start = at == 0 || !is_word(text[at - 1]);
    const auto rest = text.substr(at);
    const auto found = std::find_if(names_.begin(), names_.end(), [&](const Name& name) {
      return at_word_start && rest.starts_with(name.word) &&
             (rest.size() == name.word.size() || !is_word(rest[name.word.size()]));
    });
    if (found == names_.end()) {
      out += text[at++];
    } else {
      out += found->replacement;
      at += found->word.size();
    }
  }
  return out;
}

std::string Scrubber::scrub(std::string_view text) const {
  // Paths and addresses first: a name inside a path goes with it.
  std::string out;
  std::size_t at = 0;
  while (at < text.size()) {
    const auto begin = at;
    while (at < text.size() && !is_separator(text[at])) ++at;
    out += scrub_piece(text.substr(begin, at - begin));
    while (at < text.size() && is_separator(text[at])) out += text[at++];
  }
  return hide_names(out);
}

}  // namespace tandem
