// Collects the faults of an input so that a user sees all of them in one run, not one per run.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace tandem {

class FaultList {
 public:
  template <typename... Args>
  void add(fmt::format_string<Args...> f, Args&&... args) {
    add_text(fmt::format(f, std::forward<Args>(args)...));
  }
  // Names come from untrusted files: no control characters reach a terminal, no name fills it.
  void add_text(std::string text) {
    if (text.size() > kMaxTextBytes) text = text.substr(0, kMaxTextBytes) + "...";
    std::replace_if(
        text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, '?');
    items_.push_back(std::move(text));
  }

  bool empty() const { return items_.empty(); }
  std::size_t size() const { return items_.size(); }
  const std::vector<std::string>& items() const { return items_; }

  // One line for one fault; a count and a list (at most kMaxListed) for more.
  std::string text() const {
    if (items_.size() == 1) return items_.front();
    std::string out = fmt::format("{} faults:", items_.size());
    const std::size_t listed = std::min(items_.size(), kMaxListed);
    for (std::size_t i = 0; i < listed; ++i) out += "\n  - " + items_[i];
    if (listed < items_.size()) out += fmt::format("\n  - and {} more", items_.size() - listed);
    return out;
  }

  // Throws Error{kConfiguration} if anything was added.
  void throw_if_any(const std::string& where, const std::string& remedy = {}) const {
    if (empty()) return;
    throw Error(ExitCode::kConfiguration,
                {.what = text(), .where = where, .expected = {}, .remedy = remedy});
  }

 private:
  static constexpr std::size_t kMaxListed = 40;
  static constexpr std::size_t kMaxTextBytes = 1000;
  std::vector<std::string> items_;
};

}  // namespace tandem
