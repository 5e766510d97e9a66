// What a rank knows of a model before it holds any of it: configuration, tensor headers, tokenizer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/model_config.h"
#include "config/job_config.h"
#include "layers/weight_source.h"
#include "parallel/identity.h"
#include "prompts/tokenizer.h"

namespace tandem {

struct ModelFiles {
  ModelConfig config;
  Checkpoint checkpoint;  // empty with model.load: dummy and no weights in the directory
  std::unique_ptr<WeightSource> weights;  // how they are stored, or made up
  Tokenizer tokenizer;
  bool dummy_weights = false;
};

// Throws Error{kConfiguration}.
ModelFiles open_model_files(const ModelSection& model);

// What must be equal on all ranks before anything is loaded: the program, the configuration, the
// checkpoint, the tokenizer.
std::vector<IdentityFact> identity_facts(const ModelFiles& files, const std::string& resolved_yaml);

// SHA-256 of the running program's file.
std::string program_sha256();

}  // namespace tandem
