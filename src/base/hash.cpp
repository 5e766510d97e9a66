#include "base/hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <xxhash.h>

#include <array>
#include <fstream>
#include <memory>
#include <vector>

#include "base/error.h"

namespace tandem {
namespace {

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    TANDEM_CHECK(context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }
  void update(const void* data, std::size_t bytes) {
    TANDEM_CHECK(EVP_DigestUpdate(context_.get(), data, bytes) == 1);
  }
  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int size = 0;
    TANDEM_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), &size) == 1);
    std::string out;
    for (unsigned int i = 0; i < size; ++i) out += fmt::format("{:02x}", digest[i]);
    return out;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

std::string sha256_hex(std::string_view data) {
  Sha256 hash;
  hash.update(data.data(), data.size());
  return hash.hex();
}

std::string sha256_file_hex(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    throw Error(ExitCode::kConfiguration, {.what = "cannot open the file for reading",
                                           .where = path.string(),
                                           .expected = "a readable file",
                                           .remedy = "check the path and its permissions"});
  }
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  while (in) {
    in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    hash.update(buffer.data(), static_cast<std::size_t>(in.gcount()));
  }
  return hash.hex();
}

std::uint64_t xxh3_64(const void* data, std::size_t bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

}  // namespace tandem
