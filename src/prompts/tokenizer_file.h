// tokenizer.json as plain structs: all reading and checking of that file, none of the work. The
// file is untrusted: wrong types, missing parts, contradictory ids and unknown constructs end in an
// Error that names them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "prompts/added_tokens.h"
#include "prompts/bpe.h"
#include "prompts/pre_tokenizer.h"
#include "prompts/unicode_normalizer.h"

namespace tandem {

struct TokenizerFile {
  std::vector<AddedToken> added_tokens;
  std::vector<NormalizationForm> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  BpeModel model;
  std::vector<std::string> token_text;  // [largest id + 1], as in the file; empty: no such token
  bool decode_byte_level = false;       // decoder: alphabet back to bytes
  bool decode_byte_fallback = false;    // decoder: "<0xE4>" back to its byte
  std::vector<std::int32_t> prefix;     // what the post-processor puts in front of a prompt
  std::vector<std::int32_t> suffix;     // and behind it
};

// Throws Error{kConfiguration}; `name` is the file's name in messages.
TokenizerFile parse_tokenizer_file(std::string_view json, const std::string& name);

// The text of bos_token if tokenizer_config.json asks for it (add_bos_token), else empty.
std::string bos_of_tokenizer_config(std::string_view json, const std::string& name);

}  // namespace tandem
