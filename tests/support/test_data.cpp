#include "tests/support/test_data.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/error.h"

namespace tandem::testing {

namespace fs = std::filesystem;

fs::path test_data(const std::string& name) { return fs::path(TANDEM_TEST_DATA_DIR) / name; }
fs::path source_dir() { return TANDEM_SOURCE_DIR; }
fs::path binary_dir() { return TANDEM_BINARY_DIR; }

TempDir::TempDir() {
  std::string pattern = (fs::temp_directory_path() / "tandem-test-XXXXXX").string();
  TANDEM_CHECK(mkdtemp(pattern.data()) != nullptr, "mkdtemp {}", pattern);
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void write_text(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  TANDEM_CHECK(out.good(), "cannot write {}", path.string());
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

}  // namespace tandem::testing
