// What a result file says about how it was made: the host's facts (output/passport.h) and the
// job's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/job_file.h"
#include "engine/engine_limits.h"
#include "engine/model_files.h"
#include "output/passport.h"
#include "output/resume.h"
#include "parallel/rank_layout.h"
#include "parallel/transport.h"
#include "prompts/request.h"

namespace tandem {

struct JobDescription {
  const ResolvedJob& job;
  const ModelFiles& files;
  const RankLayout& layout;
  const EngineLimits& limits;
  const std::vector<Request>& requests;
  std::string prompt_file_sha256;
};

// What every command on ranks knows: the host's facts, the ranks, the libraries between them.
Passport ranks_passport(const RankLayout& layout);
Passport job_passport(const JobDescription& description);
// "transport" and "transport.*": what carries the collectives, with the evidence.
void add_transport(const TransportEvidence& evidence, Passport& passport);
// Everything that can change a token, for --resume.
RunFacts job_run_facts(const JobDescription& description);

}  // namespace tandem
