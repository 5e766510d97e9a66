// A checkpoint directory: which files belong to it and which tensor lies where, checked as a whole
// before any weight is read. What the weights mean is model_config.h's and quant_format.h's;
// reading them is loader.h's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/types.h"
#include "checkpoint/fault_list.h"
#include "checkpoint/safetensors.h"

namespace tandem {

struct TensorEntry {
  DType dtype = DType::kF32;
  TensorShape shape;
  std::size_t file = 0;     // index into Checkpoint::files()
  std::uint64_t begin = 0;  // offset in that file
  std::uint64_t bytes = 0;
};

// What identifies a weight file without reading its data.
struct CheckpointFile {
  std::string name;  // relative to the directory
  std::uint64_t bytes = 0;
  std::int64_t mtime_ns = 0;
  std::uint64_t header_hash = 0;  // XXH3 of the safetensors header
};

// A drafter checkpoint borrows the target's tokenizer.
enum class TokenizerFile { kRequired, kOptional };

class Checkpoint {
 public:
  // Reads the index (or the single file) and all headers. Throws Error{kConfiguration} that lists
  // everything missing, truncated, duplicated or contradictory.
  static Checkpoint open(const std::filesystem::path& directory,
                         TokenizerFile tokenizer = TokenizerFile::kRequired);
  // The same, adding to `faults` instead of throwing; what could be read is returned.
  static Checkpoint scan(const std::filesystem::path& directory, TokenizerFile tokenizer,
                         FaultList& faults);

  const std::filesystem::path& directory() const { return directory_; }
  const std::map<std::string, TensorEntry>& tensors() const { return tensors_; }
  const std::vector<CheckpointFile>& files() const { return files_; }
  std::filesystem::path file_path(std::size_t file) const { return directory_ / files_[file].name; }
  const TensorEntry* find(const std::string& name) const;  // nullptr if absent

  // Tensors that lie in a shard but not in the index ("name (file)"), and weight files that the
  // index does not name. Neither is loaded.
  const std::vector<std::string>& leftover_tensors() const { return leftover_tensors_; }
  const std::vector<std::string>& leftover_files() const { return leftover_files_; }
  std::uint64_t weight_bytes() const;  // of all tensors

  // Equal for equal checkpoints whatever their directory and file times; ranks compare it. Covers
  // names, sizes and headers of the weight files, config.json, generation_config.json,
  // tokenizer.json, and a few pages of each weight file's data (two revisions of one model have the
  // same headers). Reads up to 64 KiB a file.
  std::uint64_t identity_hash() const;
  // SHA-256 of each weight file, in the order of files(). Reads everything.
  std::vector<std::string> hash_weights() const;

 private:
  std::filesystem::path directory_;
  std::map<std::string, TensorEntry> tensors_;
  std::vector<CheckpointFile> files_;
  std::vector<std::string> leftover_tensors_;
  std::vector<std::string> leftover_files_;
};

}  // namespace tandem
