#include "tests/output/sample_records.h"

namespace tandem::testing {

std::string sample_id(std::int64_t index) { return "request-" + std::to_string(index); }

RequestRecord sample_request(std::int64_t index, std::int64_t tokens) {
  RequestRecord r;
  r.id = sample_id(index);
  r.tags = R"({"task":"count"})";
  r.concurrency = 2;
  r.seed = 7;
  r.finish_reason = FinishReason::kLength;
  const double arrival = 0.1 + 0.1 * static_cast<double>(index);
  r.arrival_s = arrival;
  r.scheduled_s = arrival + 0.01;
  r.prompt_ids = {1, 2, static_cast<std::int32_t>(index)};
  for (std::int64_t t = 0; t < tokens; ++t) {
    r.completion_ids.push_back(static_cast<std::int32_t>(100 * index + t));
    r.token_steps.push_back(t / 2);
    r.token_times_s.push_back(arrival + 0.02 + 0.01 * static_cast<double>(t / 2));
  }
  r.draft_rounds = tokens / 2;
  r.draft_proposed = {tokens / 2, tokens / 2};
  r.draft_accepted = {tokens / 2, 0};
  r.prompt_text = "count to ten";
  r.completion_text = "eins zwei drei \xE2\x82\xAC " + std::to_string(index);
  return r;
}

WriterOptions sample_options(const std::filesystem::path& file, std::int64_t num_requests) {
  WriterOptions options;
  options.file = file;
  options.flush_every_s = 3600;
  options.passport.set("host", "spark-one.lab.example");
  options.passport.set("user", "ada");
  options.passport.set("start_utc", "2026-08-01T12:00:00Z");
  options.passport.set("job", "sample");
  options.facts.token_keys = {{"sampling.seed", "0"}, {"speculative.method", "mtp"}};
  options.facts.checkpoint_identity = "model.safetensors 1234 abcd";
  options.facts.tokenizer_sha256 = "feed";
  options.facts.program_version = "0.1.0";
  options.facts.num_ranks = 2;
  for (std::int64_t i = 0; i < num_requests; ++i) {
    options.facts.prompts.push_back({sample_id(i), static_cast<std::uint64_t>(i + 1)});
  }
  return options;
}

}  // namespace tandem::testing
