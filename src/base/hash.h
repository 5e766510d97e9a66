// Hashes for identity (SHA-256, of files people name in papers) and for quick comparison (XXH3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace tandem {

std::string sha256_hex(std::string_view data);
// Throws Error{kConfiguration} if the file cannot be read.
std::string sha256_file_hex(const std::filesystem::path& path);

std::uint64_t xxh3_64(const void* data, std::size_t bytes, std::uint64_t seed = 0);
inline std::uint64_t xxh3_64(std::string_view text) { return xxh3_64(text.data(), text.size()); }

}  // namespace tandem
