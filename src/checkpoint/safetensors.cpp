#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "base/hash.h"
#include "checkpoint/read_only_file.h"

namespace tandem {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "tensor data is little endian");

constexpr std::uint64_t kMaxOffset = std::numeric_limits<std::int64_t>::max();
constexpr std::string_view kPointerText = "version https://git-lfs";

// An entry of the header as it was written: nothing is believed yet.
struct RawEntry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<TensorShape> shape;
  std::vector<std::uint64_t> offsets;
  bool has_offsets = false;
};

// Reads the header's fixed form {name: {dtype, shape, data_offsets}, __metadata__: {text: text}}
// event by event: what does not belong there stops the parser, so neither deep nesting nor foreign
// content is ever stored.
class HeaderReader : public json::json_sax_t {
 public:
  std::vector<RawEntry> entries;
  std::map<std::string, std::string> metadata;
  std::string fault;  // why the parser stopped

  bool null() override { return reject("null"); }
  bool boolean(bool) override { return reject("a boolean"); }
  bool binary(binary_t&) override { return reject("binary data"); }
  bool number_integer(number_integer_t value) override {
    return reject(fmt::format("the negative number {}", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return reject(fmt::format("the number {}, which is no 64-bit integer", text));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape && value <= kMaxOffset) {
      entries.back().shape->push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets && value <= kMaxOffset) {
      entries.back().offsets.push_back(value);
      return true;
    }
    return reject(fmt::format("the number {}", value));
  }
  bool string(string_t& text) override {
    if (place_ == Place::kMetadata) {
      metadata[key_] = text;
      return true;
    }
    if (place_ == Place::kEntry && key_ == "dtype") {
      entries.back().dtype = text;
      return true;
    }
    return reject("text");
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) return reject("an object");
    keys_.clear();
    place_ = key_ == "__metadata__" ? Place::kMetadata : Place::kEntry;
    if (place_ == Place::kEntry) entries.emplace_back().name = key_;
    return true;
  }
  bool end_object() override {
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ == Place::kEntry && key_ == "shape") {
      entries.back().shape.emplace();
      place_ = Place::kShape;
      return true;
    }
    if (place_ == Place::kEntry && key_ == "data_offsets") {
      entries.back().has_offsets = true;
      place_ = Place::kOffsets;
      return true;
    }
    return reject("an array");
  }
  bool end_array() override {
    place_ = Place::kEntry;
    return true;
  }

  bool key(string_t& name) override {
    auto& seen = place_ == Place::kTop ? names_ : keys_;
    if (!seen.insert(name).second) {
      fault = place_ == Place::kTop ? fmt::format("tensor \"{}\" occurs twice in the header", name)
                                    : fmt::format("key \"{}\" occurs twice in {}", name, where());
      return false;
    }
    if (place_ == Place::kEntry && name != "dtype" && name != "shape" && name != "data_offsets") {
      fault = fmt::format("unknown key \"{}\" in {}", name, where());
      return false;
    }
    key_ = name;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    fault = fmt::format("the header is not valid JSON at byte {}: {}", position, error.what());
    return false;
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kEntry, kShape, kOffsets, kEnd };

  std::string where() const {
    if (place_ == Place::kMetadata) return "__metadata__";
    return entries.empty() ? "the header" : fmt::format("tensor \"{}\"", entries.back().name);
  }
  bool reject(const std::string& what) {
    const std::string place = place_ == Place::kTop ? "the header" : where();
    fault = fmt::format("{} at key \"{}\" of {} is not allowed there", what, key_, place);
    return false;
  }

  Place place_ = Place::kStart;
  std::string key_;
  std::unordered_set<std::string> names_;  // of the top level
  std::unordered_set<std::string> keys_;   // of the current entry
};

// Product of the shape times the element size; empty on overflow of 63 bits.
std::optional<std::uint64_t> checked_bytes(const TensorShape& shape, std::size_t element_bytes) {
  std::uint64_t bytes = element_bytes;
  for (const auto n : shape) {
    const auto dim = static_cast<std::uint64_t>(n);
    // A later zero makes the size zero, but a prefix that overflows is refused all the same: no
    // real tensor has one, and every reader would have to agree on the order.
    if (dim != 0 && bytes > kMaxOffset / dim) return std::nullopt;
    bytes *= dim;
  }
  return bytes;
}

std::optional<TensorInfo> check_entry(const RawEntry& raw, const std::string& file,
                                      FaultList& faults) {
  const auto fault = [&](const std::string& text) {
    faults.add("{}: tensor \"{}\": {}", file, raw.name, text);
    return std::nullopt;
  };
  if (!raw.dtype || !raw.shape || !raw.has_offsets) {
    return fault("its entry lacks dtype, shape or data_offsets");
  }
  const auto dtype = parse_dtype(*raw.dtype);
  if (!dtype) return fault(fmt::format("unknown dtype \"{}\"", *raw.dtype));
  if (raw.offsets.size() != 2 || raw.offsets[0] > raw.offsets[1]) {
    return fault("data_offsets must be [begin, end] with begin <= end");
  }
  const auto bytes = checked_bytes(*raw.shape, dtype_bytes(*dtype));
  if (!bytes) return fault(fmt::format("shape {} overflows", shape_text(*raw.shape)));
  const std::uint64_t stored = raw.offsets[1] - raw.offsets[0];
  if (*bytes != stored) {
    return fault(fmt::format("{} {} takes {} bytes but its data_offsets span {}", *raw.dtype,
                             shape_text(*raw.shape), *bytes, stored));
  }
  return TensorInfo{raw.name, *dtype, *raw.shape, raw.offsets[0], stored};
}

// Sorts by offset and checks that the ranges tile the data buffer.
void check_ranges(std::vector<TensorInfo>& tensors, std::uint64_t data_bytes,
                  const std::string& file, FaultList& faults) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.begin + a.bytes) < std::pair(b.begin, b.begin + b.bytes);
  });
  std::uint64_t end = 0;
  std::string previous = "the header";
  for (const auto& t : tensors) {
    if (t.begin < end) {
      faults.add("{}: tensor \"{}\" overlaps \"{}\" by {} bytes", file, t.name, previous,
                 std::min(end, t.begin + t.bytes) - t.begin);
    } else if (t.begin > end) {
      faults.add("{}: {} bytes between \"{}\" and \"{}\" belong to no tensor", file, t.begin - end,
                 previous, t.name);
    }
    end = std::max(end, t.begin + t.bytes);
    previous = t.name;
  }
  if (end > data_bytes) {
    faults.add(
        "{}: is truncated: its header describes {} bytes of data, the file holds {}; "
        "download it again",
        file, end, data_bytes);
  } else if (end < data_bytes) {
    faults.add("{}: {} bytes after the last tensor belong to no tensor", file, data_bytes - end);
  }
}

}  // namespace

std::string shape_text(const TensorShape& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::int64_t shape_numel(const TensorShape& shape) {
  std::int64_t n = 1;
  for (const auto dim : shape) n *= dim;
  return n;
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

SafetensorsHeader scan_safetensors_header(const std::filesystem::path& path, FaultList& faults) {
  SafetensorsHeader header;
  header.path = path;
  const std::string name = path.filename().string();
  std::optional<ReadOnlyFile> file;
  try {
    file.emplace(path);
  } catch (const Error& error) {
    faults.add("{}: {}", name, error.text().what);
    return header;
  }
  header.file_bytes = file->bytes();
  header.mtime_ns = file->mtime_ns();

  std::array<char, kPointerText.size()> start{};
  const std::size_t start_bytes = std::min<std::uint64_t>(start.size(), file->bytes());
  file->read_exact(start.data(), start_bytes, 0);
  if (std::string_view(start.data(), start_bytes) == kPointerText) {
    faults.add("{}: is a git-lfs pointer, not the weights; fetch them with 'git lfs pull'", name);
    return header;
  }
  if (file->bytes() < 8) {
    faults.add("{}: has {} bytes, too short for a safetensors file", name, file->bytes());
    return header;
  }
  std::uint64_t length = 0;
  std::copy_n(start.data(), sizeof length, reinterpret_cast<char*>(&length));
  if (length > kMaxSafetensorsHeaderBytes || length > file->bytes() - 8) {
    faults.add("{}: header length {} exceeds {}; the file is truncated or no safetensors file",
               name, length,
               length > kMaxSafetensorsHeaderBytes
                   ? fmt::format("the limit of {} bytes", kMaxSafetensorsHeaderBytes)
                   : fmt::format("the file size {}", file->bytes()));
    return header;
  }
  header.header_bytes = length;

  std::string text(length, '\0');
  file->read_exact(text.data(), text.size(), 8);
  header.header_hash = xxh3_64(text);
  if (text.empty() || text.front() != '{') {
    faults.add("{}: the header does not start with '{{'; this is no safetensors file", name);
    return header;
  }
  // The parser would take a zero byte for the end of the text and ignore what follows.
  if (text.find('\0') != std::string::npos) {
    faults.add("{}: the header contains a zero byte", name);
    return header;
  }
  HeaderReader reader;
  if (!json::sax_parse(text, &reader)) {
    faults.add("{}: {}", name, reader.fault);
    return header;
  }
  header.metadata = std::move(reader.metadata);
  const std::size_t faults_before = faults.size();
  for (const auto& raw : reader.entries) {
    if (auto info = check_entry(raw, name, faults)) header.tensors.push_back(std::move(*info));
  }
  // Tiling means nothing while entries are missing.
  if (faults.size() == faults_before) {
    check_ranges(header.tensors, file->bytes() - 8 - length, name, faults);
  }
  for (auto& t : header.tensors) t.begin += 8 + length;
  return header;
}

SafetensorsHeader read_safetensors_header(const std::filesystem::path& path) {
  FaultList faults;
  auto header = scan_safetensors_header(path, faults);
  faults.throw_if_any(path.parent_path().string());
  return header;
}

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const auto& t : tensors) {
    const auto bytes = checked_bytes(t.shape, dtype_bytes(t.dtype));
    TANDEM_CHECK(bytes && !header.contains(t.name), "tensor {}", t.name);
    header[t.name] = {{"dtype", std::string(dtype_name(t.dtype))},
                      {"shape", t.shape},
                      {"data_offsets", {offset, offset + *bytes}}};
    offset += *bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::uint64_t length = text.size();

  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  for (const auto& t : tensors) {
    out.write(static_cast<const char*>(t.data),
              static_cast<std::streamsize>(*checked_bytes(t.shape, dtype_bytes(t.dtype))));
  }
  out.close();
  if (!out) {
    throw Error(ExitCode::kInternal, {.what = "cannot write the file",
                                      .where = path.string(),
                                      .expected = {},
                                      .remedy = "check free space and permissions"});
  }
}

}  // namespace tandem
