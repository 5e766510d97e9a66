#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/hash.h"
#include "checkpoint/json_text.h"
#include "checkpoint/read_only_file.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";

struct WeightMap {
  std::map<std::string, std::string> file_of;  // tensor -> file name; empty without an index
  std::vector<std::string> files;              // sorted
};

bool file_exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::vector<std::string> weight_files_in(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    if (entry.path().extension() == ".safetensors") names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// An index must not make us read files outside the checkpoint.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

WeightMap read_index(const fs::path& path, FaultList& faults) {
  WeightMap map;
  const std::string text = read_json_text(path, faults);
  if (text.empty()) return map;
  const json index = json::parse(text);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object() ||
      index["weight_map"].empty()) {
    faults.add("{}: has no weight_map object with tensor names", kIndexName);
    return map;
  }
  std::set<std::string> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      faults.add("{}: tensor \"{}\" is not mapped to a file name of this directory", kIndexName,
                 tensor);
      continue;
    }
    map.file_of[tensor] = file;
    files.insert(file.get<std::string>());
  }
  map.files.assign(files.begin(), files.end());
  return map;
}

WeightMap find_weights(const fs::path& directory, FaultList& faults) {
  if (file_exists(directory / kIndexName)) return read_index(directory / kIndexName, faults);
  WeightMap map;
  const auto found = weight_files_in(directory);
  if (std::find(found.begin(), found.end(), kSingleName) != found.end()) {
    map.files = {kSingleName};
  } else if (found.size() == 1) {
    map.files = found;
  } else if (found.empty()) {
    faults.add("neither {} nor {} is there", kIndexName, kSingleName);
  } else {
    faults.add("{} is missing beside {} weight files: the download was interrupted", kIndexName,
               found.size());
  }
  return map;
}

// "model-00003-of-00018.safetensors" alone says that 17 others belong to it.
void check_lone_shard(const WeightMap& map, FaultList& faults) {
  if (!map.file_of.empty() || map.files.size() != 1) return;
  const auto at = map.files[0].find("-of-");
  if (at == std::string::npos || map.files[0].compare(at, 10, "-of-00001.") == 0) return;
  faults.add("{}: is one shard of several, but {} is missing", map.files[0], kIndexName);
}

std::uint64_t file_text_hash(const fs::path& path) {
  if (!file_exists(path)) return 0;
  const ReadOnlyFile file(path);
  std::string text(file.bytes(), '\0');
  file.read_exact(text.data(), text.size(), 0);
  return xxh3_64(text);
}

// XXH3 of 16 pages spread evenly over the file.
std::uint64_t sample_hash(const fs::path& path) {
  constexpr std::uint64_t kSamples = 16;
  constexpr std::uint64_t kSampleBytes = 4096;
  const ReadOnlyFile file(path);
  std::array<char, kSampleBytes> page{};
  std::uint64_t hash = 0;
  const std::uint64_t last = file.bytes() > kSampleBytes ? file.bytes() - kSampleBytes : 0;
  for (std::uint64_t i = 0; i < kSamples; ++i) {
    const std::uint64_t offset = last / (kSamples - 1) * i;
    const auto count = std::min<std::uint64_t>(kSampleBytes, file.bytes() - offset);
    file.read_exact(page.data(), count, offset);
    hash = xxh3_64(page.data(), count, hash);
  }
  return hash;
}

}  // namespace

Checkpoint Checkpoint::open(const fs::path& directory, TokenizerFile tokenizer) {
  FaultList faults;
  Checkpoint checkpoint = scan(directory, tokenizer, faults);
  faults.throw_if_any(directory.string(), "the checkpoint is not complete; download it again");
  return checkpoint;
}

Checkpoint Checkpoint::scan(const fs::path& directory, TokenizerFile tokenizer, FaultList& faults) {
  Checkpoint checkpoint;
  checkpoint.directory_ = directory;
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    faults.add("is not a directory");
    return checkpoint;
  }
  if (!file_exists(directory / "config.json")) faults.add("config.json is missing");
  if (tokenizer == TokenizerFile::kRequired && !file_exists(directory / "tokenizer.json")) {
    faults.add("tokenizer.json is missing");
  }

  const WeightMap map = find_weights(directory, faults);
  check_lone_shard(map, faults);
  std::set<std::string> unreadable;  // their tensors are not reported one by one
  for (const auto& name : map.files) {
    if (!file_exists(directory / name)) {
      faults.add("{}: is named by {} but missing", name, kIndexName);
      unreadable.insert(name);
      continue;
    }
    const std::size_t faults_before = faults.size();
    const SafetensorsHeader header = scan_safetensors_header(directory / name, faults);
    if (faults.size() != faults_before) unreadable.insert(name);
    const std::size_t file = checkpoint.files_.size();
    checkpoint.files_.push_back({name, header.file_bytes, header.mtime_ns, header.header_hash});
    for (const auto& t : header.tensors) {
      const auto listed = map.file_of.find(t.name);
      if (!map.file_of.empty() && listed == map.file_of.end()) {
        checkpoint.leftover_tensors_.push_back(fmt::format("{} ({})", t.name, name));
        continue;
      }
      if (listed != map.file_of.end() && listed->second != name) {
        faults.add("tensor \"{}\" lies in {} although {} maps it to {}", t.name, name, kIndexName,
                   listed->second);
        continue;
      }
      checkpoint.tensors_[t.name] = {t.dtype, t.shape, file, t.begin, t.bytes};
    }
  }
  for (const auto& [tensor, name] : map.file_of) {
    if (!unreadable.contains(name) && !checkpoint.tensors_.contains(tensor)) {
      faults.add("tensor \"{}\" is not in {}, where {} says it is", tensor, name, kIndexName);
    }
  }
  for (auto& name : weight_files_in(directory)) {
    if (!map.files.empty() &&
        std::find(map.files.begin(), map.files.end(), name) == map.files.end()) {
      checkpoint.leftover_files_.push_back(std::move(name));
    }
  }
  if (faults.empty() && checkpoint.tensors_.empty()) faults.add("holds no tensors");
  return checkpoint;
}

const TensorEntry* Checkpoint::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

std::uint64_t Checkpoint::weight_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors_) bytes += tensor.bytes;
  return bytes;
}

std::uint64_t Checkpoint::identity_hash() const {
  std::string text;
  for (const auto& file : files_) {
    text += fmt::format("{} {} {:016x} {:016x}\n", file.name, file.bytes, file.header_hash,
                        sample_hash(directory_ / file.name));
  }
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json"}) {
    text += fmt::format("{} {:016x}\n", name, file_text_hash(directory_ / name));
  }
  return xxh3_64(text);
}

std::vector<std::string> Checkpoint::hash_weights() const {
  std::vector<std::string> hashes;
  for (const auto& file : files_) hashes.push_back(sha256_file_hex(directory_ / file.name));
  return hashes;
}

}  // namespace tandem
