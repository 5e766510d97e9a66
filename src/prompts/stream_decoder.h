// Token ids to text as they arrive. Nothing is given out that later tokens could change: half a
// UTF-8 character is held back. All pieces together equal Tokenizer::decode of all ids.
#pragma once

#include <cstdint>
#include <string>

#include "prompts/tokenizer.h"
#include "prompts/utf8.h"

namespace tandem {

class StreamDecoder {
 public:
  // The tokenizer must outlive the decoder.
  StreamDecoder(const Tokenizer& tokenizer, SpecialTokens special)
      : tokenizer_(&tokenizer), special_(special) {}

  // Appends the text that became certain with this token, which may be none.
  void push(std::int32_t id, std::string* text);
  // No more tokens: appends U+FFFD for an unfinished character. The decoder is then as new.
  void finish(std::string* text);

 private:
  void end_byte_run(std::string* text);

  const Tokenizer* tokenizer_;
  SpecialTokens special_;
  LossyUtf8 utf8_;
  std::string byte_run_;  // bytes of consecutive byte-fallback tokens
};

}  // namespace tandem
