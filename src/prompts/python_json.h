// JSON in the spelling of Python's json.dumps(value, ensure_ascii=False): ", " and ": " between
// items, keys in their order, floats as repr() writes them. Models were trained on tool schemas
// written so.
#pragma once

#include <string>
#include <string_view>

namespace tandem {

// Deeper than any tool schema. What works on parsed JSON may recurse, so this is checked before.
inline constexpr int kMaxJsonDepth = 64;
// How deeply brackets nest in a text that need not be valid JSON.
int json_depth(std::string_view text);

// Re-spells a JSON text, which must be valid and not too deep.
std::string python_json(std::string_view json_text);

// repr() of a finite float.
std::string python_float(double value);

}  // namespace tandem
