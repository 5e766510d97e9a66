#include "output/result_reader.h"

#include <charconv>
#include <string>

#include "output/bench_schema.h"
#include "output/h5_file.h"
#include "output/result_schema.h"
#include "output/table_io.h"

namespace tandem {
namespace {

// Hands each request its piece of a flat dataset.
template <typename Container, typename Field>
void split(std::vector<RequestRecord>& requests, const std::vector<std::int64_t>& offsets,
           const Container& flat, Field RequestRecord::*field) {
  TANDEM_CHECK(offsets.back() == static_cast<std::int64_t>(flat.size()), "{} values for {}",
               flat.size(), offsets.back());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].*field = Field(flat.begin() + offsets[i], flat.begin() + offsets[i + 1]);
  }
}

void check_rows(const std::vector<std::int64_t>& offsets, std::size_t requests,
                std::string_view path) {
  TANDEM_CHECK(offsets.size() == requests + 1, "{} offsets in {} for {} requests", offsets.size(),
               path, requests);
}

void read_tokens(const H5File& file, ResultContents& out) {
  const auto prompt_offsets = read_offsets(file, schema::kPromptOffsets, schema::kPromptIds);
  check_rows(prompt_offsets, out.requests.size(), schema::kPromptOffsets.path);
  split(out.requests, prompt_offsets, read_flat<std::int32_t>(file, schema::kPromptIds),
        &RequestRecord::prompt_ids);
  const auto& offsets = out.token_offsets;
  split(out.requests, offsets, read_flat<std::int32_t>(file, schema::kCompletionIds),
        &RequestRecord::completion_ids);
  split(out.requests, offsets, out.token_times_s, &RequestRecord::token_times_s);
  split(out.requests, offsets, out.token_steps, &RequestRecord::token_steps);
  split(out.requests, offsets, read_flat<double>(file, schema::kLogprob), &RequestRecord::logprobs);
  split(out.requests, offsets, read_flat<std::uint64_t>(file, schema::kLogitHash),
        &RequestRecord::logit_hashes);
  for (auto& request : out.requests) {
    if (!request.logprobs.empty() && request.logprobs.front() == kMissingF64) {
      request.logprobs.clear();
    }
    if (!request.logit_hashes.empty() && request.logit_hashes.front() == kMissingU64) {
      request.logit_hashes.clear();
    }
  }
}

void read_text(const H5File& file, ResultContents& out) {
  const auto prompts = read_offsets(file, schema::kPromptTextOffsets, schema::kPromptText);
  check_rows(prompts, out.requests.size(), schema::kPromptTextOffsets.path);
  split(out.requests, prompts, read_flat<char>(file, schema::kPromptText),
        &RequestRecord::prompt_text);
  const auto completions =
      read_offsets(file, schema::kCompletionTextOffsets, schema::kCompletionText);
  check_rows(completions, out.requests.size(), schema::kCompletionTextOffsets.path);
  split(out.requests, completions, read_flat<char>(file, schema::kCompletionText),
        &RequestRecord::completion_text);
}

void read_acceptance(const H5File& file, ResultContents& out) {
  auto proposed = file.read_matrix(schema::kProposed.path);
  auto accepted = file.read_matrix(schema::kAccepted.path);
  TANDEM_CHECK(proposed.size() == out.requests.size() && accepted.size() == out.requests.size(),
               "/acceptance has {} and {} rows for {} requests", proposed.size(), accepted.size(),
               out.requests.size());
  for (std::size_t i = 0; i < out.requests.size(); ++i) {
    out.requests[i].draft_proposed = std::move(proposed[i]);
    out.requests[i].draft_accepted = std::move(accepted[i]);
  }
}

void read_passports(const H5File& file, ResultContents& out) {
  out.passport = read_passport(file, schema::kPassportGroup);
  constexpr std::string_view kPrefix = "session_";
  for (const auto& name : file.group_names(schema::kPassportGroup)) {
    if (!name.starts_with(kPrefix)) continue;
    std::int64_t session = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), session);
    out.later_passports[session] =
        read_passport(file, fmt::format("{}{}", schema::kSessionPassportPrefix, session));
  }
}

}  // namespace

std::vector<RequestRow> request_rows(const ResultContents& contents) {
  return {contents.requests.begin(), contents.requests.end()};
}

void damaged_file(const std::filesystem::path& file, const std::string& detail) {
  throw Error(ExitCode::kConfiguration,
              {.what = fmt::format("damaged or not a Tandem result ({})", detail),
               .where = file.string(),
               .expected = "a result file as described in results/README.md",
               .remedy = "use another copy of the file"});
}

ResultContents read_result(const std::filesystem::path& path, const ReadOptions& options) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    throw Error(ExitCode::kConfiguration,
                {.what = std::filesystem::exists(path, error) ? "not a file" : "no such file",
                 .where = path.string(),
                 .expected = "a result file"});
  }
  return as_file_fault(path, [&] {
    const auto file = H5File::open_for_reading(path);
    check_version(file, path);
    if (file.exists(schema::kBenchGroup)) {
      throw Error(ExitCode::kConfiguration,
                  {.what = "made by tandem bench: no requests in it",
                   .where = path.string(),
                   .expected = "a result of tandem run",
                   .remedy = "print it with tandem report and no other option"});
    }
    ResultContents out;
    out.file = path;
    read_passports(file, out);
    out.facts = read_facts(file);
    out.sessions = read_rows(file, schema::kSessions);
    out.groups = read_rows(file, schema::kGroups);
    out.summary = read_rows(file, schema::kSummary);
    out.requests = read_rows<RequestRow, RequestRecord>(file, schema::kRequests);
    out.token_offsets = read_offsets(file, schema::kCompletionOffsets, schema::kCompletionIds);
    check_rows(out.token_offsets, out.requests.size(), schema::kCompletionOffsets.path);
    out.token_times_s = read_flat<double>(file, schema::kTokenTime);
    out.token_steps = read_flat<std::int64_t>(file, schema::kTokenStep);
    for (const auto size : {out.token_times_s.size(), out.token_steps.size()}) {
      TANDEM_CHECK(static_cast<std::int64_t>(size) == out.token_offsets.back(),
                   "{} and {} do not have a value for each token", schema::kTokenTime.path,
                   schema::kTokenStep.path);
    }
    read_acceptance(file, out);
    if (options.tokens) read_tokens(file, out);
    if (options.text) read_text(file, out);
    if (options.steps) out.steps = read_rows(file, schema::kSteps);
    if (options.samples) {
      out.memory = read_rows(file, schema::kMemory);
      out.power = read_rows(file, schema::kPower);
      out.canary = read_rows(file, schema::kCanary);
      out.log = read_rows(file, schema::kLog);
    }
    return out;
  });
}

}  // namespace tandem
