#include "prompts/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <cctype>

#include "base/error.h"

namespace tandem {
namespace {

// Unicode's White_Space property, which is Oniguruma's \s. PCRE2's own \s adds U+180E.
constexpr std::string_view kSpace =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr std::string_view kNotSpace =
    R"(\x{0}-\x{8}\x{E}-\x{1F}\x{21}-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027})"
    R"(\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{D7FF}\x{E000}-\x{10FFFF})";
// Oniguruma's \w; PCRE2's leaves out marks and letter-like symbols.
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";

[[noreturn]] void refuse(std::string_view pattern, std::string what) {
  throw Error(ExitCode::kConfiguration,
              {.what = fmt::format("regular expression '{}': {}", pattern, what),
               .where = {},
               .expected = {},
               .remedy = {}});
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_character(c);
      } else {
        plain_character(c);
      }
    }
    if (in_class_) refuse(in_, "unclosed character class");
    return std::move(out_);
  }

 private:
  void copy() { out_.push_back(in_[at_++]); }

  void plain_character(char c) {
    // After an interval Oniguruma reads '+' as a second repetition, PCRE2 as "possessive".
    if (c == '}' && in_.substr(at_).starts_with("}+")) refuse(in_, "'+' after an interval");
    // Of the inline flags only 'i' means the same ("m" is PCRE2's "s").
    if (c == '(' && in_.substr(at_).starts_with("(?") &&
        (at_ + 2 >= in_.size() ||
         std::string_view(":=!<>i-").find(in_[at_ + 2]) == std::string_view::npos))
      refuse(in_, fmt::format("group '{}' is not supported", in_.substr(at_, 3)));
    if (c == '[') {
      in_class_ = true;
      copy();
      if (at_ < in_.size() && in_[at_] == '^') copy();
      class_begin_ = at_;
      return;
    }
    copy();
  }

  void class_character(char c) {
    if (c == '[') refuse(in_, "nested character class");
    if (c == '&' && in_.substr(at_).starts_with("&&")) refuse(in_, "class intersection '&&'");
    if (c == ']' && at_ == class_begin_) refuse(in_, "empty character class");
    if (c == ']') in_class_ = false;
    copy();
  }

  void escape() {
    if (at_ + 1 >= in_.size()) refuse(in_, "ends with a backslash");
    const char c = in_[at_ + 1];
    switch (c) {
      case 's':
        return replace(kSpace, false);
      case 'S':
        return in_class_ ? replace(kNotSpace, false) : replace(kSpace, true);
      case 'w':
        return replace(kWord, false);
      case 'W':
        if (in_class_) refuse(in_, "\\W inside a character class");
        return replace(kWord, true);
      case 'p':
      case 'P':
        return property();
      case 'u':
        return code_unit();
      case 'd':
      case 'D':
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'x':
        copy();
        return copy();
      default:
        if (std::isalnum(static_cast<unsigned char>(c)) || static_cast<unsigned char>(c) >= 0x80)
          refuse(in_, fmt::format("escape '\\{}' is not supported", c));
        copy();
        return copy();
    }
  }

  void replace(std::string_view set, bool negate) {
    if (in_class_) {
      out_ += set;
    } else {
      out_ += fmt::format("[{}{}]", negate ? "^" : "", set);
    }
    at_ += 2;
  }

  // One- and two-letter general categories are spelt alike. A longer name is a script, for which
  // PCRE2 would take Script_Extensions unless told not to.
  void property() {
    const std::size_t close = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || close == std::string_view::npos)
      refuse(in_, "\\p without {name}");
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    std::string negation;
    if (name.starts_with('^')) {
      negation = "^";
      name.remove_prefix(1);
    }
    const std::string prefix =
        name.size() <= 2 || name == "Any" || name == "Alphabetic" ? "" : "sc:";
    out_ += fmt::format("\\{}{{{}{}{}}}", in_[at_ + 1], negation, prefix, name);
    at_ = close + 1;
  }

  void code_unit() {
    const std::string_view digits = in_.substr(at_ + 2, 4);
    if (digits.size() != 4 ||
        digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos)
      refuse(in_, "\\u without four hexadecimal digits");
    out_ += fmt::format("\\x{{{}}}", digits);
    at_ += 6;
  }

  std::string_view in_;
  std::string out_;
  std::size_t at_ = 0;
  std::size_t class_begin_ = 0;
  bool in_class_ = false;
};

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256] = {};
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

std::string translate_oniguruma(std::string_view pattern) { return Translator(pattern).run(); }

struct Regex::Handles {
  std::string pattern;
  pcre2_code* code = nullptr;
  pcre2_match_data* match_data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  bool jit = false;

  Handles() = default;
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  ~Handles() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match_data);
    pcre2_code_free(code);
  }
};

Regex::Regex(std::string_view oniguruma_pattern) : handles_(std::make_unique<Handles>()) {
  Handles& h = *handles_;
  h.pattern = translate_oniguruma(oniguruma_pattern);
  // In Ruby syntax '^' and '$' always mean the borders of lines. Text is checked or repaired before
  // it gets here, so PCRE2 need not look at its UTF-8 again (which would be quadratic: once a
  // match).
  const std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_UTF_CHECK;
  int code = 0;
  PCRE2_SIZE offset = 0;
  h.code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(h.pattern.data()), h.pattern.size(), options,
                         &code, &offset, nullptr);
  if (h.code == nullptr)
    refuse(oniguruma_pattern, fmt::format("{} at offset {} of its PCRE2 form '{}'",
                                          pcre2_message(code), offset, h.pattern));
  h.match_data = pcre2_match_data_create(1, nullptr);
  h.context = pcre2_match_context_create(nullptr);
  TANDEM_CHECK(h.match_data != nullptr && h.context != nullptr, "out of memory");
  // The limits guard servers against strangers' patterns. Here they would turn a legal prompt (ten
  // megabytes of blanks) into an error.
  pcre2_set_match_limit(h.context, 0xFFFFFFFFu);
  pcre2_set_heap_limit(h.context, 0xFFFFFFFFu);
  h.jit = pcre2_jit_compile(h.code, PCRE2_JIT_COMPLETE) == 0;
  if (h.jit) {
    h.stack = pcre2_jit_stack_create(64 << 10, 256 << 20, nullptr);
    pcre2_jit_stack_assign(h.context, nullptr, h.stack);
  }
}

Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

bool Regex::find(std::string_view text, std::size_t from, RegexMatch* match) {
  Handles& h = *handles_;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  // An empty view may have a null pointer, which PCRE2 refuses.
  if (text.data() == nullptr) subject = reinterpret_cast<PCRE2_SPTR>("");
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  if (h.jit) rc = pcre2_jit_match(h.code, subject, text.size(), from, 0, h.match_data, h.context);
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
    rc = pcre2_match(h.code, subject, text.size(), from, PCRE2_NO_JIT | PCRE2_NO_UTF_CHECK,
                     h.match_data, h.context);
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0)
    refuse(h.pattern, fmt::format("{} on a text of {} bytes", pcre2_message(rc), text.size()));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(h.match_data);
  *match = {ends[0], ends[1]};
  return true;
}

}  // namespace tandem
