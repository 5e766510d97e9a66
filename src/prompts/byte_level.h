// The byte alphabet of GPT-2's tokenizer: every byte has one printable character, so that a
// vocabulary of arbitrary bytes can be written as JSON strings. Printable Latin-1 bytes stand for
// themselves, the others for U+0100, U+0101, ... in the order of their value.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tandem {

// The character of a byte, as UTF-8.
std::string_view byte_to_character(unsigned char byte);
// The bytes a string of the alphabet stands for; empty optional if one of its characters is not in
// the alphabet. `text` must be valid UTF-8.
std::optional<std::string> bytes_of_characters(std::string_view text);

}  // namespace tandem
