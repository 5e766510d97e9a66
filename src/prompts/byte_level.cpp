#include "prompts/byte_level.h"

#include <array>

#include "prompts/utf8.h"

namespace tandem {
namespace {

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<std::string, 256> characters;
  std::array<int, 0x144> bytes;  // [code point] byte, -1: none; 0x143 is the last code point used

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const char32_t code_point = stands_for_itself(byte) ? byte : next++;
      append_utf8(code_point, &characters[byte]);
      bytes[code_point] = static_cast<int>(byte);
    }
  }
};

const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

}  // namespace

std::string_view byte_to_character(unsigned char byte) { return alphabet().characters[byte]; }

std::optional<std::string> bytes_of_characters(std::string_view text) {
  const Alphabet& table = alphabet();
  std::string bytes;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t code_point = next_code_point(text, &at);
    if (code_point >= table.bytes.size() || table.bytes[code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(table.bytes[code_point]));
  }
  return bytes;
}

}  // namespace tandem
