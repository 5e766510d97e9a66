// What rank 0 reads for all: the job file and the prompt batch. Collective functions; every error
// is thrown on all ranks alike.
#pragma once

#include <string>
#include <vector>

#include "config/job_file.h"
#include "engine/engine_limits.h"
#include "engine/model_files.h"
#include "parallel/host_comm.h"
#include "parallel/rank_layout.h"
#include "prompts/prompt_batch.h"
#include "prompts/request.h"

namespace tandem {

struct SharedJob {
  ResolvedJob job;
  std::string output_file;  // with job and time filled in, the same on all ranks
};

SharedJob share_job(const HostComm& world, const std::string& job_file,
                    const std::vector<std::string>& overrides);
// The same from the text of a configuration, which counts on rank 0 only.
SharedJob share_job_text(const HostComm& world, const std::string& yaml, const std::string& name,
                         const std::vector<std::string>& overrides);

// Whether the promised level of equality is possible on this layout. Throws Error{kConfiguration}.
void check_determinism(const JobConfig& job, const RankLayout& layout);

struct SharedPrompts {
  std::vector<Request> requests;
  std::string sha256;  // of the file
};

SharedPrompts share_prompts(const HostComm& world, const JobConfig& job, const ModelFiles& files,
                            const EngineLimits& limits, BadPrompts policy);

}  // namespace tandem
