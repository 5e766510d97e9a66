// Small tokenizer files for tests: a vocabulary of the 256 bytes, some merges, some added tokens.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "prompts/tokenizer.h"

namespace tandem::testing {

struct TokenizerSpec {
  std::vector<std::pair<std::string, std::string>> merges{};  // in the byte-level alphabet
  std::vector<std::string> added{};  // JSON objects without id, e.g. {"content": "<x>"}
  std::string normalizer = "null";
  std::string pre_tokenizer =
      R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
  std::string post_processor = "null";
  std::string decoder = R"({"type": "ByteLevel"})";
  std::string model_extra{};    // e.g. "\"ignore_merges\": true,"
  bool merges_as_text = false;  // "a b" instead of ["a", "b"]
};

// Ids: the bytes 0..255 by value, then the merged tokens in order, then the added tokens.
std::string tokenizer_json(const TokenizerSpec& spec);
Tokenizer make_tokenizer(const TokenizerSpec& spec);

// In the style of DeepSeek-V4's file: three splits in sequence, no normalizer.
TokenizerSpec deepseek_spec();

}  // namespace tandem::testing
