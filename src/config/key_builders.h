// Makes the rows of the key table: one builder per type, which joins a field of JobConfig with its
// reading, range check and printing. Included by job_keys.cpp alone.
#pragma once

#include <fmt/format.h>

#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/job_keys.h"

namespace tandem {

struct KeyDoc {
  std::string name;
  std::string help;
  std::string unit = {};
  TokenEffect token_effect = TokenEffect::kNone;
  Presence presence = Presence::kOptional;
};

struct IntegerRule {
  std::int64_t low = 0;
  std::int64_t high = std::numeric_limits<int>::max();
  enum class Shape { kAny, kPowerOfTwo } shape = Shape::kAny;
};

struct NumberRule {
  double low = 0;
  double high = 0;
  enum class Ends { kClosed, kOpenLow, kOpenHigh } ends = Ends::kClosed;
};

template <typename T>
struct OptionalTraits {
  static constexpr bool kIsOptional = false;
  using Value = T;
};
template <typename T>
struct OptionalTraits<std::optional<T>> {
  static constexpr bool kIsOptional = true;
  using Value = T;
};

// An optional field reads and prints its absence as "auto", or as null.
enum class AbsentWord { kAuto, kNull };

inline bool is_absent(const RawValue& raw, AbsentWord word) {
  if (word == AbsentWord::kNull) return raw.kind == RawValue::Kind::kNull;
  return raw.kind == RawValue::Kind::kPlain && raw.text == "auto";
}

// `field` maps JobConfig& to a reference to the field; `parse` gives Parsed<T> of a RawValue with
// the range checked; `print` turns a T into YAML text.
template <typename Field, typename Parse, typename Print>
JobKey make_key(KeyType type, KeyDoc doc, std::string expected, Field field, Parse parse,
                Print print, AbsentWord absent = AbsentWord::kAuto) {
  using Slot = std::remove_reference_t<decltype(field(std::declval<JobConfig&>()))>;
  using Value = typename OptionalTraits<Slot>::Value;
  constexpr bool kIsOptional = OptionalTraits<Slot>::kIsOptional;
  if (kIsOptional) expected += absent == AbsentWord::kAuto ? ", or auto" : ", or null";
  JobKey key{doc.name, type, doc.presence, doc.token_effect, expected, doc.unit, doc.help, {}, {}};
  key.set = [=](JobConfig& config, const RawValue& raw) -> std::optional<ValueProblem> {
    if constexpr (kIsOptional) {
      if (is_absent(raw, absent)) {
        field(config).reset();
        return std::nullopt;
      }
    }
    auto parsed = parse(raw);
    if (!parsed.value) return ValueProblem{parsed.problem, expected};
    field(config) = static_cast<Value>(std::move(*parsed.value));
    return std::nullopt;
  };
  key.get = [=](const JobConfig& config) -> std::string {
    const Slot& slot = field(config);
    if constexpr (kIsOptional) {
      if (!slot) return absent == AbsentWord::kAuto ? "auto" : "null";
      return print(*slot);
    } else {
      return print(slot);
    }
  };
  return key;
}

inline Parsed<std::int64_t> check_integer(const RawValue& raw, IntegerRule rule) {
  auto parsed = parse_integer(raw);
  if (!parsed.value) return parsed;
  const auto value = *parsed.value;
  if (value < rule.low || value > rule.high)
    return {std::nullopt, describe(raw) + " is out of range"};
  if (rule.shape == IntegerRule::Shape::kPowerOfTwo && (value & (value - 1)) != 0) {
    return {std::nullopt, describe(raw) + " is not a power of two"};
  }
  return parsed;
}

inline std::string expected_integer(IntegerRule rule) {
  const char* kind =
      rule.shape == IntegerRule::Shape::kPowerOfTwo ? "a power of two" : "an integer";
  if (rule.high == std::numeric_limits<int>::max()) {
    return fmt::format("{} of at least {}", kind, rule.low);
  }
  return fmt::format("{} from {} to {}", kind, rule.low, rule.high);
}

template <typename Field>
JobKey bool_key(KeyDoc doc, Field field) {
  return make_key(KeyType::kBool, std::move(doc), "true or false", field, parse_bool,
                  [](bool value) { return std::string(value ? "true" : "false"); });
}

template <typename Field>
JobKey integer_key(KeyDoc doc, Field field, IntegerRule rule,
                   AbsentWord absent = AbsentWord::kAuto) {
  return make_key(
      KeyType::kInteger, std::move(doc), expected_integer(rule), field,
      [rule](const RawValue& raw) { return check_integer(raw, rule); },
      [](int value) { return fmt::format("{}", value); }, absent);
}

template <typename Field>
JobKey number_key(KeyDoc doc, Field field, NumberRule rule) {
  using Ends = NumberRule::Ends;
  const auto expected =
      fmt::format("a number in {}{}, {}{}", rule.ends == Ends::kOpenLow ? '(' : '[', rule.low,
                  rule.high, rule.ends == Ends::kOpenHigh ? ')' : ']');
  const auto parse = [rule](const RawValue& raw) -> Parsed<double> {
    auto parsed = parse_number(raw);
    if (!parsed.value) return parsed;
    const double value = *parsed.value;
    const bool inside = value >= rule.low && value <= rule.high &&
                        !(rule.ends == Ends::kOpenLow && value == rule.low) &&
                        !(rule.ends == Ends::kOpenHigh && value == rule.high);
    if (!inside) return {std::nullopt, describe(raw) + " is out of range"};
    return parsed;
  };
  return make_key(KeyType::kNumber, std::move(doc), expected, field, parse, yaml_number);
}

template <typename Field>
JobKey size_key(KeyDoc doc, Field field) {
  return make_key(KeyType::kSize, std::move(doc), "a size with KiB, MiB or GiB", field,
                  parse_size_bytes, yaml_size);
}

template <typename Field>
JobKey duration_key(KeyDoc doc, Field field, double low_s) {
  const auto parse = [low_s](const RawValue& raw) -> Parsed<double> {
    auto parsed = parse_seconds(raw);
    if (parsed.value && *parsed.value < low_s) {
      return {std::nullopt, describe(raw) + " is out of range"};
    }
    return parsed;
  };
  return make_key(KeyType::kDuration, std::move(doc),
                  fmt::format("a duration with s, m or h of at least {}", yaml_duration(low_s)),
                  field, parse, yaml_duration);
}

template <typename Field, typename Enum>
JobKey choice_key(KeyDoc doc, Field field, std::vector<std::pair<std::string, Enum>> choices) {
  std::string expected = "one of ";
  for (std::size_t i = 0; i < choices.size(); ++i) expected += (i ? ", " : "") + choices[i].first;
  const auto parse = [choices](const RawValue& raw) -> Parsed<Enum> {
    for (const auto& [word, value] : choices) {
      if (raw.is_scalar() && raw.text == word) return {value, ""};
    }
    return {std::nullopt, describe(raw) + " is not a known choice"};
  };
  const auto print = [choices](Enum value) {
    for (const auto& [word, choice] : choices) {
      if (choice == value) return word;
    }
    return std::string();
  };
  return make_key(KeyType::kChoice, std::move(doc), expected, field, parse, print);
}

// A file or directory. Made absolute by job_file before it gets here.
template <typename Field, typename Check>
JobKey path_key(KeyDoc doc, std::string expected, Field field, Check check,
                AbsentWord absent = AbsentWord::kNull) {
  const auto parse = [check](const RawValue& raw) -> Parsed<std::string> {
    auto parsed = parse_text(raw);
    if (!parsed.value) return parsed;
    if (parsed.value->empty()) return {std::nullopt, "the path is empty"};
    if (auto problem = check(*parsed.value); !problem.empty()) return {std::nullopt, problem};
    return parsed;
  };
  return make_key(KeyType::kPath, std::move(doc), std::move(expected), field, parse, yaml_quoted,
                  absent);
}

}  // namespace tandem
