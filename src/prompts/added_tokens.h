// Added tokens ("<|im_start|>", "<think>"): strings that are one token wherever they stand, found
// before any other stage sees the text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // swallows white space to its left
  bool rstrip = false;       // and to its right
  bool normalized = false;   // looked for in the normalized text, not in the raw text
  bool special = false;      // hidden when decoding with SpecialTokens::kSkip
};

// A stretch of text, or one added token.
struct Segment {
  std::string_view text;
  std::optional<std::int32_t> id;
};

// Leftmost match, the longest of those that begin there (a trie, walked from every position where a
// token can begin).
class AddedTokenMatcher {
 public:
  void add(AddedToken token);
  bool empty() const { return tokens_.empty(); }

  // Appends the segments of `text`, valid UTF-8; the views point into it. None of them is empty.
  void split(std::string_view text, std::vector<Segment>* segments) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, std::uint32_t>> children;  // byte, node
    std::int32_t token = -1;                                        // index into tokens_
  };

  const AddedToken* longest_at(std::string_view text, std::size_t at, std::size_t* length) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_{1};
  std::array<bool, 256> begins_token_{};
};

}  // namespace tandem
