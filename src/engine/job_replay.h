// `tandem replay`: the reproducibility proof. Re-runs a random sample of a result file's requests
// with the configuration in its passport and compares the tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/mpi_env.h"

namespace tandem {

struct JobReplayOptions {
  std::string file;
  int sample = 20;
  std::uint64_t seed = 0;
  std::vector<std::string> overrides;
};

// Exit code kDone when every sampled request gives the same tokens, kRankFailure (divergence) with
// the first difference of each when not. Throws Error{kConfiguration} when checkpoint, tokenizer or
// prompts are not those of the file.
int replay_job(MpiEnv& mpi, const JobReplayOptions& options);

}  // namespace tandem
