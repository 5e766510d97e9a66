#include "checkpoint/json_text.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "checkpoint/read_only_file.h"

namespace tandem {
namespace {

using nlohmann::json;

// Walks the text without building a document; the parser behind it does not recurse.
class WellFormed : public json::json_sax_t {
 public:
  const std::string& fault() const { return fault_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    if (keys_.back().insert(name).second) return true;
    fault_ = fmt::format("key \"{}\" occurs twice in one object", name);
    return false;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    fault_ = fmt::format("is not valid JSON at byte {}: {}", position, error.what());
    return false;
  }

 private:
  bool enter() {
    keys_.emplace_back();
    if (keys_.size() <= static_cast<std::size_t>(kMaxJsonDepth)) return true;
    fault_ = fmt::format("is nested deeper than {} levels", kMaxJsonDepth);
    return false;
  }
  bool leave() {
    keys_.pop_back();
    return true;
  }

  std::vector<std::unordered_set<std::string>> keys_;  // one set an open object or array
  std::string fault_;
};

}  // namespace

std::string read_json_text(const std::filesystem::path& path, FaultList& faults) {
  const std::string name = path.filename().string();
  try {
    const ReadOnlyFile file(path);
    if (file.bytes() > kMaxJsonBytes) {
      faults.add("{}: has {} bytes, at most {} are read", name, file.bytes(), kMaxJsonBytes);
      return {};
    }
    std::string text(file.bytes(), '\0');
    file.read_exact(text.data(), text.size(), 0);
    if (std::string_view(text).starts_with("version https://git-lfs")) {
      faults.add("{}: is a git-lfs pointer, not the file itself; fetch it with 'git lfs pull'",
                 name);
      return {};
    }
    // The parser would take a zero byte for the end of the text and ignore what follows.
    if (text.find('\0') != std::string::npos) {
      faults.add("{}: contains a zero byte", name);
      return {};
    }
    WellFormed check;
    if (!json::sax_parse(text, &check)) {
      faults.add("{}: {}", name, check.fault());
      return {};
    }
    return text;
  } catch (const Error& error) {
    faults.add("{}: {}", name, error.text().what);
    return {};
  }
}

}  // namespace tandem
