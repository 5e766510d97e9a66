// Cuts text into the pieces that byte-pair encoding works on: the pre_tokenizer of tokenizer.json
// as a list of steps, each applied to the pieces the one before left.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "prompts/regex.h"

namespace tandem {

// What becomes of a match (names as in tokenizer.json). "Match" is what the pattern found, or the
// text between with `invert`.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct PreTokenizerStep {
  enum class Kind {
    kRegex,        // split by a regular expression
    kLiteral,      // split by a fixed string
    kPrefixSpace,  // a blank in front of every piece that has none
  };
  Kind kind = Kind::kRegex;
  std::string pattern;
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
};

// The pattern a ByteLevel pre-tokenizer uses unless use_regex is false (GPT-2's).
extern const char* const kByteLevelPattern;

// Not for use by several threads at once (see Regex).
class PreTokenizer {
 public:
  // Throws Error{kConfiguration} for a pattern that does not compile.
  explicit PreTokenizer(const std::vector<PreTokenizerStep>& steps);

  // The pieces of valid UTF-8, none of them empty. They point into `text` or into storage that
  // lives until the next call.
  const std::vector<std::string_view>& split(std::string_view text);

 private:
  struct Step {
    PreTokenizerStep spec;
    std::optional<Regex> regex;
  };
  struct Part {
    std::size_t begin = 0;
    std::size_t end = 0;
    bool is_match = false;
  };

  bool find(Step& step, std::string_view piece, std::size_t from, RegexMatch* match);
  void split_piece(Step& step, std::string_view piece);

  std::vector<Step> steps_;
  std::vector<std::string_view> pieces_;
  std::vector<std::string_view> next_;
  std::vector<Part> parts_;
  std::deque<std::string> owned_;  // pieces with an added blank
};

}  // namespace tandem
