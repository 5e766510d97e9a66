// Takes out of a text what points at people and machines: known names, network addresses, paths.
// Plain text processing, used by the redaction of result files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tandem {

class Scrubber {
 public:
  // Host names lose their domain as well: "node1.lab.org" also hides "node1".
  void add_host(std::string_view host);
  void add_user(std::string_view user);

  // Known names (as whole words) become <host> and <user>; IPv4, IPv6 and MAC addresses and GIDs
  // become <address>; absolute, home-relative and dotted relative paths, and relative ones that end
  // in a file name extension, become <path>.
  std::string scrub(std::string_view text) const;

 private:
  struct Name {
    std::string word;
    std::string_view replacement;
  };
  std::string hide_names(std::string_view text) const;
  void add(std::string_view word, std::string_view replacement);

  std::vector<Name> names_;
};

}  // namespace tandem
