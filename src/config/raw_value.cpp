#include "config/raw_value.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "base/units.h"

namespace tandem {
namespace {

using Kind = RawValue::Kind;

template <typename T>
Parsed<T> refuse(std::string problem) {
  return {std::nullopt, std::move(problem)};
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Decimal digits only: 010 is eight in YAML 1.1 and ten in 1.2, 1_000 and 0x10 depend on the
// reader as well.
template <typename T>
Parsed<T> parse_decimal(const RawValue& raw) {
  if (raw.kind != Kind::kPlain) return refuse<T>(describe(raw) + " is not an integer");
  std::string_view digits = raw.text;
  if (!digits.empty() && digits.front() == '-') digits.remove_prefix(1);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos ||
      (digits.size() > 1 && digits.front() == '0')) {
    return refuse<T>(describe(raw) + " is not an integer in plain decimal digits");
  }
  T value = 0;
  const auto* end = raw.text.data() + raw.text.size();
  const auto [rest, error] = std::from_chars(raw.text.data(), end, value);
  if (error != std::errc{} || rest != end) return refuse<T>(describe(raw) + " is out of range");
  return {value, ""};
}

}  // namespace

std::string describe(const RawValue& raw) {
  switch (raw.kind) {
    case Kind::kNull:
      return "null";
    case Kind::kPlain:
      return fmt::format("'{}'", raw.text);
    case Kind::kQuoted:
      return "the quoted text " + yaml_quoted(raw.text);
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a map";
  }
  return "";
}

Parsed<bool> parse_bool(const RawValue& raw) {
  if (raw.kind == Kind::kPlain && raw.text == "true") return {true, ""};
  if (raw.kind == Kind::kPlain && raw.text == "false") return {false, ""};
  return refuse<bool>(describe(raw) + " is not true or false");
}

Parsed<std::int64_t> parse_integer(const RawValue& raw) { return parse_decimal<std::int64_t>(raw); }

Parsed<std::uint64_t> parse_unsigned(const RawValue& raw) {
  return parse_decimal<std::uint64_t>(raw);
}

Parsed<double> parse_number(const RawValue& raw) {
  if (raw.kind != Kind::kPlain) return refuse<double>(describe(raw) + " is not a number");
  std::string_view text = raw.text;
  if (text.size() > 1 && text.front() == '+' && text[1] != '-') text.remove_prefix(1);
  double value = 0;
  const auto* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range) {
    return refuse<double>(describe(raw) + " is out of range");
  }
  // from_chars takes "nan" and "inf", YAML writes .nan and .inf: neither means anything here.
  if (error != std::errc{} || rest != end || !std::isfinite(value)) {
    return refuse<double>(describe(raw) + " is not a finite number");
  }
  return {value, ""};
}

Parsed<std::string> parse_text(const RawValue& raw) {
  if (!raw.is_scalar()) return refuse<std::string>(describe(raw) + " is not a text");
  return {raw.text, ""};
}

Parsed<std::int64_t> parse_size_bytes(const RawValue& raw) {
  if (!raw.is_scalar()) return refuse<std::int64_t>(describe(raw) + " is not a size");
  // A bare number is refused although parse_bytes takes it as bytes: whoever writes 12 means GiB.
  const bool has_unit = !raw.text.empty() && raw.text.back() == 'B';
  if (!has_unit && raw.text != "0") return refuse<std::int64_t>(describe(raw) + " has no unit");
  const auto bytes = parse_bytes(raw.text);
  if (!bytes) return refuse<std::int64_t>(describe(raw) + " is not a size");
  return {*bytes, ""};
}

Parsed<double> parse_seconds(const RawValue& raw) {
  if (!raw.is_scalar()) return refuse<double>(describe(raw) + " is not a duration");
  const auto seconds = parse_duration_s(raw.text);
  if (!seconds) return refuse<double>(describe(raw) + " is not a duration with a unit");
  return {*seconds, ""};
}

Parsed<std::vector<RawValue>> parse_list(const RawValue& raw, QuotedCommas quoted_commas) {
  using List = std::vector<RawValue>;
  if (raw.kind == Kind::kList) return {raw.items, ""};
  if (!raw.is_scalar()) return refuse<List>(describe(raw) + " is not a list");
  const bool has_comma = raw.text.find(',') != std::string::npos;
  if (!has_comma) return {List{raw}, ""};
  if (raw.kind == Kind::kQuoted && quoted_commas == QuotedCommas::kRefuse) {
    return refuse<List>(describe(raw) + " may be one text or several");
  }
  List items;
  for (std::string_view rest = raw.text;;) {
    const auto comma = rest.find(',');
    items.push_back({Kind::kPlain, std::string(trimmed(rest.substr(0, comma))), {}});
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  return {items, ""};
}

std::string yaml_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string yaml_number(double value) { return fmt::format("{}", value); }

std::string yaml_size(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB"};
  int unit = 0;
  while (unit < 3 && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{}{}", bytes, kUnits[unit]);
}

std::string yaml_duration(double seconds) { return fmt::format("{}s", seconds); }

}  // namespace tandem
