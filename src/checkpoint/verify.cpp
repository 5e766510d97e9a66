#include "checkpoint/verify.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <string>

#include "base/error.h"
#include "base/hash.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kHexDigits = 64;

// File name -> lower-case hash. Lines: hash, a blank, a blank or '*' (binary mode), name.
std::map<std::string, std::string> read_manifest(const fs::path& path, FaultList& faults) {
  std::map<std::string, std::string> hashes;
  std::ifstream in(path);
  if (!in) {
    faults.add("{}: cannot open the manifest", path.string());
    return hashes;
  }
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    std::string hash = line.substr(0, std::min(line.size(), kHexDigits));
    const bool is_hash = hash.size() == kHexDigits &&
                         std::all_of(hash.begin(), hash.end(),
                                     [](unsigned char c) { return std::isxdigit(c) != 0; });
    if (!is_hash || line.size() < kHexDigits + 3 || line[kHexDigits] != ' ' ||
        (line[kHexDigits + 1] != ' ' && line[kHexDigits + 1] != '*')) {
      faults.add("{}:{}: expected \"<64 hex digits>  <file>\"", path.filename().string(), number);
      continue;
    }
    std::transform(hash.begin(), hash.end(), hash.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const std::string name = fs::path(line.substr(kHexDigits + 2)).lexically_normal().string();
    if (!hashes.emplace(name, hash).second) {
      faults.add("{}:{}: {} is listed twice", path.filename().string(), number, name);
    }
  }
  if (!in.eof()) faults.add("{}: read error", path.string());
  return hashes;
}

void check_manifest(const Checkpoint& checkpoint, const fs::path& path, FaultList& faults) {
  const auto hashes = read_manifest(path, faults);
  for (const auto& [name, expected] : hashes) {
    try {
      const std::string actual = sha256_file_hex(checkpoint.directory() / name);
      if (actual != expected) {
        faults.add("{}: SHA-256 is {}, the manifest says {}", name, actual, expected);
      }
    } catch (const Error&) {
      faults.add("{}: is in the manifest but cannot be read", name);
    }
  }
  for (const auto& file : checkpoint.files()) {
    if (!hashes.contains(file.name)) faults.add("{}: is not in the manifest", file.name);
  }
}

}  // namespace

void verify_checkpoint(const Checkpoint& checkpoint, const std::optional<fs::path>& manifest,
                       FaultList& faults) {
  for (const auto& name : checkpoint.leftover_tensors()) {
    faults.add("tensor {} is not in the index", name);
  }
  for (const auto& name : checkpoint.leftover_files()) {
    faults.add("{}: weight file that the index does not name", name);
  }
  if (manifest) check_manifest(checkpoint, *manifest, faults);
}

}  // namespace tandem
