// Where tests find their data and leave their files.
#pragma once

#include <filesystem>
#include <string>

namespace tandem::testing {

std::filesystem::path test_data(const std::string& name);  // tests/data/<name>
std::filesystem::path source_dir();                        // top of the source tree
std::filesystem::path binary_dir();                        // the build tree (tandem lies here)

// A fresh directory, removed with everything in it at the end of the scope.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

void write_text(const std::filesystem::path& path, const std::string& text);
std::string read_text(const std::filesystem::path& path);

}  // namespace tandem::testing
