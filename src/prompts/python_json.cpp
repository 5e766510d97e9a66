#include "prompts/python_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

namespace tandem {
namespace {

using nlohmann::ordered_json;

void write(const ordered_json& value, std::string* out) {
  if (value.is_object()) {
    *out += '{';
    bool first = true;
    for (const auto& [key, member] : value.items()) {
      if (!first) *out += ", ";
      first = false;
      *out += ordered_json(key).dump() + ": ";
      write(member, out);
    }
    *out += '}';
  } else if (value.is_array()) {
    *out += '[';
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (i > 0) *out += ", ";
      write(value[i], out);
    }
    *out += ']';
  } else if (value.is_number_float()) {
    *out += python_float(value.get<double>());
  } else {
    *out += value.dump();
  }
}

}  // namespace

int json_depth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

std::string python_float(double value) {
  // Shortest digits that read back as the same number, "d.ddde[+-]xx"; repr() writes them without
  // an exponent from 1e-4 up to below 1e16.
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<std::size_t>(end.ptr - buffer));
  std::string sign;
  if (text.starts_with('-')) {
    sign = "-";
    text.remove_prefix(1);
  }
  const std::size_t e = text.find('e');
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  int exponent = 0;
  const std::size_t number = text[e + 1] == '+' ? e + 2 : e + 1;
  std::from_chars(text.data() + number, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    const std::string fraction = digits.size() > 1 ? "." + digits.substr(1) : "";
    return fmt::format("{}{}{}e{}{:02}", sign, digits[0], fraction, exponent < 0 ? '-' : '+',
                       exponent < 0 ? -exponent : exponent);
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string python_json(std::string_view json_text) {
  std::string out;
  write(ordered_json::parse(json_text), &out);
  return out;
}

}  // namespace tandem
