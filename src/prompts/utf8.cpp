#include "prompts/utf8.h"

namespace tandem {
namespace {

struct Lead {
  std::size_t length = 0;                 // 0: no character begins with this byte
  unsigned char low = 0x80, high = 0xBF;  // range of the second byte (RFC 3629, section 4)
};

constexpr Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};  // no surrogates
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};  // nothing above U+10FFFF
  return {0};
}

}  // namespace

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Lead lead = lead_of(static_cast<unsigned char>(text[at]));
    if (lead.length == 0 || at + lead.length > text.size()) return at;
    for (std::size_t i = 1; i < lead.length; ++i) {
      const auto byte = static_cast<unsigned char>(text[at + i]);
      if (byte < (i == 1 ? lead.low : 0x80) || byte > (i == 1 ? lead.high : 0xBF)) return at;
    }
    at += lead.length;
  }
  return std::string_view::npos;
}

char32_t next_code_point(std::string_view text, std::size_t* at) {
  const auto byte = [&] { return static_cast<unsigned char>(text[(*at)++]); };
  const unsigned char first = byte();
  if (first < 0x80) return first;
  if (first < 0xE0) return char32_t{first & 0x1Fu} << 6 | (byte() & 0x3Fu);
  if (first < 0xF0) {
    const char32_t high = char32_t{first & 0x0Fu} << 12 | char32_t{byte() & 0x3Fu} << 6;
    return high | (byte() & 0x3Fu);
  }
  char32_t code_point = char32_t{first & 0x07u} << 18;
  code_point |= char32_t{byte() & 0x3Fu} << 12;
  code_point |= char32_t{byte() & 0x3Fu} << 6;
  return code_point | (byte() & 0x3Fu);
}

void append_utf8(char32_t code_point, std::string* out) {
  const auto put = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

void LossyUtf8::push_byte(unsigned char byte, std::string* out) {
  if (num_pending_ > 0) {
    if (byte >= next_low_ && byte <= next_high_) {
      pending_[num_pending_++] = static_cast<char>(byte);
      next_low_ = 0x80;
      next_high_ = 0xBF;
      if (num_pending_ == num_needed_) {
        out->append(pending_, num_pending_);
        num_pending_ = 0;
      }
      return;
    }
    finish(out);  // the prefix was a maximal invalid part; this byte begins anew
  }
  const Lead lead = lead_of(byte);
  if (lead.length == 1) {
    out->push_back(static_cast<char>(byte));
  } else if (lead.length == 0) {
    out->append(kReplacementCharacter);
  } else {
    pending_[0] = static_cast<char>(byte);
    num_pending_ = 1;
    num_needed_ = lead.length;
    next_low_ = lead.low;
    next_high_ = lead.high;
  }
}

void LossyUtf8::push(std::string_view bytes, std::string* out) {
  for (const char byte : bytes) push_byte(static_cast<unsigned char>(byte), out);
}

void LossyUtf8::finish(std::string* out) {
  if (num_pending_ > 0) out->append(kReplacementCharacter);
  num_pending_ = 0;
}

std::string lossy_utf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  LossyUtf8 repair;
  repair.push(bytes, &text);
  repair.finish(&text);
  return text;
}

}  // namespace tandem
