#include "prompts/unicode_normalizer.h"

#include <unicode/unorm2.h>
#include <unicode/uset.h>
#include <unicode/ustring.h>

#include <limits>

#include "base/error.h"
#include "prompts/utf8.h"

namespace tandem {
namespace {

void check(UErrorCode status, const char* call) {
  if (U_FAILURE(status))
    throw Error(ExitCode::kInternal, {.what = std::string(call) + ": " + u_errorName(status),
                                      .where = "ICU",
                                      .expected = {},
                                      .remedy = "check that ICU's data is installed"});
}

// Characters that NFC never changes and that never combine with what stands before them: everything
// below the combining marks, general punctuation, CJK punctuation and ideographs, full-width forms.
constexpr bool is_plain_for_nfc(char32_t c) {
  return c < 0x300 || (c >= 0x2010 && c <= 0x2027) || (c >= 0x3001 && c <= 0x3029) ||
         (c >= 0x4E00 && c <= 0x9FD5) || (c >= 0xFF01 && c <= 0xFF60);
}

bool is_plain(std::string_view text, NormalizationForm form) {
  const char32_t limit = form == NormalizationForm::kNfc ? 0x300 : 0x80;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = next_code_point(text, &at);
    if (c >= limit && (form != NormalizationForm::kNfc || !is_plain_for_nfc(c))) return false;
  }
  return true;
}

const UNormalizer2* instance(NormalizationForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const UNormalizer2* normalizer = nullptr;
  switch (form) {
    case NormalizationForm::kNfc:
      normalizer = unorm2_getNFCInstance(&status);
      break;
    case NormalizationForm::kNfd:
      normalizer = unorm2_getNFDInstance(&status);
      break;
    case NormalizationForm::kNfkc:
      normalizer = unorm2_getNFKCInstance(&status);
      break;
    case NormalizationForm::kNfkd:
      normalizer = unorm2_getNFKDInstance(&status);
      break;
  }
  check(status, "unorm2_get*Instance");
  return normalizer;
}

}  // namespace

struct UnicodeNormalizer::Handle {
  NormalizationForm form = NormalizationForm::kNfc;
  USet* characters = nullptr;  // assigned by Unicode 9.0; the filter below only refers to it
  UNormalizer2* normalizer = nullptr;

  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    unorm2_close(normalizer);
    uset_close(characters);
  }
};

UnicodeNormalizer::UnicodeNormalizer(NormalizationForm form) : handle_(std::make_unique<Handle>()) {
  constexpr std::u16string_view kAge = u"[:age=9.0:]";
  UErrorCode status = U_ZERO_ERROR;
  handle_->form = form;
  handle_->characters =
      uset_openPattern(kAge.data(), static_cast<std::int32_t>(kAge.size()), &status);
  check(status, "uset_openPattern");
  uset_freeze(handle_->characters);
  handle_->normalizer = unorm2_openFiltered(instance(form), handle_->characters, &status);
  check(status, "unorm2_openFiltered");
}

UnicodeNormalizer::UnicodeNormalizer(UnicodeNormalizer&&) noexcept = default;
UnicodeNormalizer& UnicodeNormalizer::operator=(UnicodeNormalizer&&) noexcept = default;
UnicodeNormalizer::~UnicodeNormalizer() = default;

void UnicodeNormalizer::normalize(std::string* text) const {
  if (is_plain(*text, handle_->form)) return;
  TANDEM_CHECK(text->size() < std::numeric_limits<std::int32_t>::max() / 4, "{} bytes of text",
               text->size());
  const auto num_bytes = static_cast<std::int32_t>(text->size());
  UErrorCode status = U_ZERO_ERROR;
  std::u16string utf16(text->size(), u'\0');  // never more units than bytes
  std::int32_t num_units = 0;
  u_strFromUTF8(utf16.data(), num_bytes, &num_units, text->data(), num_bytes, &status);
  check(status, "u_strFromUTF8");
  utf16.resize(static_cast<std::size_t>(num_units));

  if (unorm2_quickCheck(handle_->normalizer, utf16.data(), num_units, &status) == UNORM_YES) return;
  check(status, "unorm2_quickCheck");
  std::u16string normal(utf16.size() + utf16.size() / 4 + 16, u'\0');
  for (;;) {
    status = U_ZERO_ERROR;
    const std::int32_t needed =
        unorm2_normalize(handle_->normalizer, utf16.data(), num_units, normal.data(),
                         static_cast<std::int32_t>(normal.size()), &status);
    normal.resize(static_cast<std::size_t>(needed));
    if (status != U_BUFFER_OVERFLOW_ERROR) break;
  }
  check(status, "unorm2_normalize");

  text->resize(normal.size() * 3);  // a unit gives at most three bytes
  std::int32_t num_out = 0;
  u_strToUTF8(text->data(), static_cast<std::int32_t>(text->size()), &num_out, normal.data(),
              static_cast<std::int32_t>(normal.size()), &status);
  check(status, "u_strToUTF8");
  text->resize(static_cast<std::size_t>(num_out));
}

}  // namespace tandem
