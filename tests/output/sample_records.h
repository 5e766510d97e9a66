// Made-up rows with known numbers, for tests of the writer, the reader and the report.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "output/records.h"
#include "output/result_writer.h"

namespace tandem::testing {

// Request `index` of a job: 3 prompt tokens and `tokens` completion tokens, two a step, one step
// every 10 ms from arrival 0.1 + 0.1 * index on; drafts at 2 positions, the second never accepted.
RequestRecord sample_request(std::int64_t index, std::int64_t tokens = 8);
std::string sample_id(std::int64_t index);

// Options for `num_requests` such requests: facts, passport, no periodic flush within a test's
// time.
WriterOptions sample_options(const std::filesystem::path& file, std::int64_t num_requests);

}  // namespace tandem::testing
