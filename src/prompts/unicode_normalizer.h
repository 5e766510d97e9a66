// Unicode normalization forms (UAX #15), through ICU. Most text is already normal; that is found
// out without ICU where possible.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tandem {

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// The reference library carries the tables of Unicode 9.0 and leaves characters assigned later
// alone. So does this: ICU works on the characters of that version only.
class UnicodeNormalizer {
 public:
  explicit UnicodeNormalizer(NormalizationForm form);
  UnicodeNormalizer(UnicodeNormalizer&&) noexcept;
  UnicodeNormalizer& operator=(UnicodeNormalizer&&) noexcept;
  ~UnicodeNormalizer();

  // Replaces `text`, valid UTF-8, by its normal form.
  void normalize(std::string* text) const;

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace tandem
