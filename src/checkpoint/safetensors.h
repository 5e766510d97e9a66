// One safetensors file: reading its untrusted header, and writing small files for tests and tools.
// Layout: u64 little-endian header length N, N bytes of JSON, tensor data up to the end of the
// file. Which files make a checkpoint is checkpoint.h's; reading tensor data is loader.h's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "checkpoint/fault_list.h"

namespace tandem {

// The limit of the reference implementation.
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

using TensorShape = std::vector<std::int64_t>;  // any number of dimensions, [] is a scalar

// "[248320, 5120]"
std::string shape_text(const TensorShape& shape);
// Product of the dimensions; shapes from a checked header do not overflow.
std::int64_t shape_numel(const TensorShape& shape);
// The dtype of a safetensors name ("BF16"); empty for the sub-byte and complex types, which no
// checkpoint of our families uses.
std::optional<DType> parse_dtype(std::string_view name);

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  TensorShape shape;
  std::uint64_t begin = 0;  // file offset of the first byte
  std::uint64_t bytes = 0;
};

struct SafetensorsHeader {
  std::filesystem::path path;
  std::uint64_t file_bytes = 0;
  std::uint64_t header_bytes = 0;  // N
  std::uint64_t header_hash = 0;   // XXH3 of the N header bytes
  std::int64_t mtime_ns = 0;
  std::vector<TensorInfo> tensors;  // by offset
  std::map<std::string, std::string> metadata;
};

// Reads and checks a header: length within the limit and the file before anything is allocated,
// JSON of exactly the documented form, no duplicate names, known dtypes, sizes that agree with the
// shapes, data ranges that neither overlap nor leave holes and end at the end of the file. Every
// fault is added to `faults`, prefixed with the file name; the header is then incomplete.
SafetensorsHeader scan_safetensors_header(const std::filesystem::path& path, FaultList& faults);
// The same, throwing Error{kConfiguration} that lists all faults.
SafetensorsHeader read_safetensors_header(const std::filesystem::path& path);

struct TensorToWrite {
  std::string name;
  DType dtype = DType::kF32;
  TensorShape shape;
  const void* data = nullptr;  // shape_numel(shape) elements, packed, row-major
};

// Writes a file with the tensors in the given order, header padded with spaces to a multiple of 8.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace tandem
