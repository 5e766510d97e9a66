// Requests on their way from rank 0, which alone reads the prompt file, to all ranks.
#pragma once

#include <string>
#include <vector>

#include "prompts/request.h"

namespace tandem {

std::string serialize_requests(const std::vector<Request>& requests);
std::vector<Request> deserialize_requests(const std::string& bytes);

// A canonical text of what a request asks for besides its tokens, for content hashes.
std::string sampling_text(const SamplingParams& params);

}  // namespace tandem
