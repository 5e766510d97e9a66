#include "engine/model_files.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/hash.h"
#include "engine/dummy_weights.h"

namespace tandem {
namespace {

// Dummy weights need no weight files; where there are some, their names and types are followed.
Checkpoint open_checkpoint(const ModelSection& model) {
  namespace fs = std::filesystem;
  if (model.load != LoadMode::kDummy) return Checkpoint::open(model.path);
  const bool has_weights = fs::exists(fs::path(model.path) / "model.safetensors") ||
                           fs::exists(fs::path(model.path) / "model.safetensors.index.json");
  return has_weights ? Checkpoint::open(model.path) : Checkpoint();
}

}  // namespace

ModelFiles open_model_files(const ModelSection& model) {
  ModelFiles files{.config = read_model_config(model.path),
                   .checkpoint = open_checkpoint(model),
                   .weights = nullptr,
                   .tokenizer = Tokenizer::load(model.path),
                   .dummy_weights = model.load == LoadMode::kDummy};
  if (files.dummy_weights) {
    files.weights = std::make_unique<DummyWeights>(model.dummy_format, files.checkpoint);
  } else {
    files.weights = std::make_unique<CheckpointWeights>(files.checkpoint);
  }
  return files;
}

std::vector<IdentityFact> identity_facts(const ModelFiles& files,
                                         const std::string& resolved_yaml) {
  const bool has_files = !files.checkpoint.files().empty();
  return {{"program sha256", program_sha256()},
          {"configuration sha256", sha256_hex(resolved_yaml)},
          {"checkpoint identity",
           has_files ? fmt::format("{:016x}", files.checkpoint.identity_hash()) : "dummy weights"},
          {"tokenizer sha256", files.tokenizer.sha256()}};
}

std::string program_sha256() { return sha256_file_hex("/proc/self/exe"); }

}  // namespace tandem
