#include "prompts/stream_decoder.h"

#include <utility>

namespace tandem {

void StreamDecoder::push(std::int32_t id, std::string* text) {
  if (special_ == SpecialTokens::kSkip && tokenizer_->is_special(id)) return;
  const std::string& bytes = tokenizer_->token_bytes(id);
  if (tokenizer_->is_byte_fallback(id)) {
    byte_run_ += bytes;
    return;
  }
  if (bytes.empty()) return;
  end_byte_run(text);
  utf8_.push(bytes, text);
}

// The reference decoder takes a run of byte tokens as a whole: valid UTF-8, or one U+FFFD a byte.
// So nothing of a run is certain before it ends.
void StreamDecoder::end_byte_run(std::string* text) {
  const std::string run = std::exchange(byte_run_, {});
  if (find_invalid_utf8(run) == std::string_view::npos) {
    utf8_.push(run, text);
  } else {
    for (std::size_t i = 0; i < run.size(); ++i) utf8_.push(kReplacementCharacter, text);
  }
}

void StreamDecoder::finish(std::string* text) {
  end_byte_run(text);
  utf8_.finish(text);
}

}  // namespace tandem
