// UTF-8 checking and lossy repair, byte-exact with Rust's from_utf8_lossy (one U+FFFD for each
// maximal invalid part; Unicode 15, section 3.9, "U+FFFD Substitution of Maximal Subparts"), which
// is what the reference tokenizer library applies to decoded bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Offset of the first byte that is not part of valid UTF-8; npos if there is none.
std::size_t find_invalid_utf8(std::string_view text);

// One code point of valid UTF-8 at text[at]; advances `at` behind it.
char32_t next_code_point(std::string_view text, std::size_t* at);
void append_utf8(char32_t code_point, std::string* out);

// Repairs a byte stream that arrives in pieces; the pieces' borders leave no trace in the result.
class LossyUtf8 {
 public:
  void push(std::string_view bytes, std::string* out);
  void finish(std::string* out);

 private:
  void push_byte(unsigned char byte, std::string* out);

  char pending_[4] = {};  // a valid prefix of one character
  std::size_t num_pending_ = 0;
  std::size_t num_needed_ = 0;     // length of the character being built
  unsigned char next_low_ = 0x80;  // allowed range of its next byte
  unsigned char next_high_ = 0xBF;
};

std::string lossy_utf8(std::string_view bytes);

}  // namespace tandem
