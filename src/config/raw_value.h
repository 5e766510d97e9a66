// Values as written in a job file, and their conversion to types. The key's type decides what a
// text means; YAML's own guesses (no, on, 1e-5, 0x10) are not used. Ranges belong to job_keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

struct RawValue {
  enum class Kind { kNull, kPlain, kQuoted, kList, kMap };
  Kind kind = Kind::kNull;
  std::string text;             // of a scalar
  std::vector<RawValue> items;  // of a list

  bool is_scalar() const { return kind == Kind::kPlain || kind == Kind::kQuoted; }
};

// Either a value, or what is wrong with the text: "'yes' is not true or false".
template <typename T>
struct Parsed {
  std::optional<T> value;
  std::string problem;
};

Parsed<bool> parse_bool(const RawValue& raw);                // plain true, false
Parsed<std::int64_t> parse_integer(const RawValue& raw);     // plain decimal digits, optional '-'
Parsed<std::uint64_t> parse_unsigned(const RawValue& raw);   // the same, up to 2^64 - 1
Parsed<double> parse_number(const RawValue& raw);            // plain, finite: 7e-1, 0.7, 1
Parsed<std::string> parse_text(const RawValue& raw);         // any scalar but null
Parsed<std::int64_t> parse_size_bytes(const RawValue& raw);  // with a unit: 12GiB
Parsed<double> parse_seconds(const RawValue& raw);           // with a unit: 60s, 5m
// A YAML list, or one text with commas. A quoted text with commas is taken apart only when
// `quoted_commas` allows it: a stop string "," is not a list of two empty ones.
enum class QuotedCommas { kSplit, kRefuse };
Parsed<std::vector<RawValue>> parse_list(const RawValue& raw, QuotedCommas quoted_commas);

// How a value is named in messages: "'0.5'", "the quoted text \"0.5\"", "null", "a list".
std::string describe(const RawValue& raw);

// YAML texts that read back to the same value.
std::string yaml_quoted(std::string_view text);
std::string yaml_number(double value);
std::string yaml_size(std::int64_t bytes);
std::string yaml_duration(double seconds);

}  // namespace tandem
