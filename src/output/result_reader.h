// A result file back in memory, for report, resume, replay and compare. Reads complete files only
// (the writer never shows others); anything else is one Error{kConfiguration} that says what the
// file is not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "output/passport.h"
#include "output/records.h"
#include "output/resume.h"

namespace tandem {

// What to read beside passport, facts, sessions, groups, summary and the columns of /requests.
struct ReadOptions {
  bool tokens = false;   // ids, times, steps, logprobs, logit hashes
  bool text = false;     // prompt_text, completion_text
  bool steps = false;    // /steps
  bool samples = false;  // /memory, /power, /canary, /log
};

struct ResultContents {
  std::filesystem::path file;
  Passport passport;                                 // of the first session
  std::map<std::int64_t, Passport> later_passports;  // of sessions 2, 3, ...
  RunFacts facts;
  std::vector<SessionRow> sessions;
  std::vector<GroupRecord> groups;
  std::vector<SummaryRow> summary;          // as written; empty when no session came to its end
  std::vector<RequestRecord> requests;      // draft_proposed and draft_accepted always filled in
  std::vector<std::int64_t> token_offsets;  // [requests + 1], into token_times_s
  std::vector<double> token_times_s;        // of all completion tokens
  std::vector<std::int64_t> token_steps;    // and the steps that made them
  std::vector<StepRecord> steps;
  std::vector<MemoryRow> memory;
  std::vector<PowerSample> power;
  std::vector<CanaryRecord> canary;
  std::vector<LogEvent> log;
};

// The rows alone, for summarize().
std::vector<RequestRow> request_rows(const ResultContents& contents);

[[noreturn]] void damaged_file(const std::filesystem::path& file, const std::string& detail);

ResultContents read_result(const std::filesystem::path& file, const ReadOptions& options);

// Runs `read` and turns any HDF5 failure or broken promise into Error{kConfiguration} about `file`.
template <typename Read>
auto as_file_fault(const std::filesystem::path& file, Read&& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kConfiguration && !error.text().where.empty()) throw;
    damaged_file(file, error.what());
  } catch (const std::exception& error) {  // sizes of a damaged file that no memory can hold
    damaged_file(file, error.what());
  }
}

}  // namespace tandem
