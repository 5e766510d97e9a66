// Regular expressions of tokenizer files. They are written for Oniguruma (Ruby syntax), which is
// what the reference library runs; here PCRE2 runs them. Where the two read a construct alike it is
// passed on, where they differ it is rewritten (\s, \w, scripts), and the rest is refused by name.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace tandem {

// The PCRE2 spelling of an Oniguruma pattern. Throws Error{kConfiguration}.
std::string translate_oniguruma(std::string_view pattern);

struct RegexMatch {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// Not for use by several threads at once: match data and stack are part of the object.
class Regex {
 public:
  // Throws Error{kConfiguration} with the compiler's own text.
  explicit Regex(std::string_view oniguruma_pattern);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // First match at or behind `from` in valid UTF-8. False if there is none.
  bool find(std::string_view text, std::size_t from, RegexMatch* match);

 private:
  struct Handles;
  std::unique_ptr<Handles> handles_;
};

}  // namespace tandem
