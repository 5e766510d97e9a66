#include "output/columns.h"

#include <array>

namespace tandem {
namespace {

constexpr std::array<std::string_view, 5> kFinishReasons = {"stop", "length", "error", "cancelled",
                                                            "skipped"};
constexpr std::array<std::string_view, 2> kStepKinds = {"prompt", "round"};
constexpr std::array<std::string_view, 4> kLogLevels = {"debug", "info", "warning", "error"};

template <typename Enum, std::size_t n>
void parse_word(std::string_view text, const std::array<std::string_view, n>& words, Enum& out) {
  for (std::size_t i = 0; i < n; ++i) {
    if (words[i] == text) {
      out = static_cast<Enum>(i);
      return;
    }
  }
  throw Error(ExitCode::kConfiguration,
              {.what = fmt::format("unknown word \"{}\"", text),
               .expected = fmt::format("one of {}", fmt::join(words, ", "))});
}

}  // namespace

std::string_view element_type_name(ElementType type) {
  switch (type) {
    case ElementType::kI8:
      return "int8";
    case ElementType::kU8:
      return "uint8";
    case ElementType::kI32:
      return "int32";
    case ElementType::kI64:
      return "int64";
    case ElementType::kU64:
      return "uint64";
    case ElementType::kF64:
      return "float64";
    case ElementType::kBool:
      return "bool";
    case ElementType::kText:
      return "text";
  }
  return "";
}

std::string_view to_text(FinishReason reason) {
  return kFinishReasons.at(static_cast<std::size_t>(reason));
}
std::string_view to_text(StepKind kind) { return kStepKinds.at(static_cast<std::size_t>(kind)); }
std::string_view to_text(LogLevel level) { return kLogLevels.at(static_cast<std::size_t>(level)); }

void from_text(std::string_view text, FinishReason& out) { parse_word(text, kFinishReasons, out); }
void from_text(std::string_view text, StepKind& out) { parse_word(text, kStepKinds, out); }
void from_text(std::string_view text, LogLevel& out) { parse_word(text, kLogLevels, out); }

std::string clip_text(std::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  constexpr std::string_view kMark = "...";
  std::size_t end = max_bytes - kMark.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;
  return std::string(text.substr(0, end)) + std::string(kMark);
}

}  // namespace tandem
