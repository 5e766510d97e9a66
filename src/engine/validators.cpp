#include "engine/validators.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

namespace tandem {
namespace {

std::string_view strip(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

std::set<std::string> requested(const std::string& tags) {
  std::set<std::string> names;
  const auto json = nlohmann::json::parse(tags, nullptr, false);
  if (!json.is_object() || !json.contains("validate")) return names;
  const auto& wanted = json["validate"];
  if (wanted.is_string()) names.insert(wanted.get<std::string>());
  if (wanted.is_array()) {
    for (const auto& name : wanted) {
      if (name.is_string()) names.insert(name.get<std::string>());
    }
  }
  return names;
}

}  // namespace

void run_validators(const Request& request, std::string_view answer, RequestRecord& record) {
  const std::string_view text = strip(answer);
  record.empty_answer = text.empty();
  if (request.reference) record.exact_match = text == strip(*request.reference);
  const auto names = requested(request.tags);
  if (names.contains("json")) record.json_valid = nlohmann::json::accept(text);
  if (names.contains("lines")) {
    record.line_count = text.empty() ? 0 : std::count(text.begin(), text.end(), '\n') + 1;
  }
}

bool ends_in_repetition(std::span<const std::int32_t> ids) {
  constexpr std::size_t kMaxPeriod = 64;
  constexpr std::size_t kLeastTokens = 64;
  for (std::size_t period = 1; period <= kMaxPeriod; ++period) {
    const std::size_t needed = std::max(kLeastTokens, 4 * period);
    if (ids.size() < needed) continue;
    const auto tail = ids.last(needed);
    if (std::equal(tail.begin() + static_cast<std::ptrdiff_t>(period), tail.end(), tail.begin())) {
      return true;
    }
  }
  return false;
}

}  // namespace tandem
