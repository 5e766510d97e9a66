#include "output/resume.h"

#include <unordered_map>

#include "base/error.h"
#include "base/hash.h"
#include "output/result_reader.h"

namespace tandem {
namespace {

constexpr std::size_t kMostListed = 20;  // of prompts; a wholly different file needs no more

void compare_text(std::string_view name, const std::string& stored, const std::string& now,
                  std::vector<std::string>& differences) {
  if (stored == now) return;
  differences.push_back(fmt::format("{}: the file has '{}', this run '{}'", name, stored, now));
}

void compare_keys(const std::map<std::string, std::string>& stored,
                  const std::map<std::string, std::string>& now,
                  std::vector<std::string>& differences) {
  for (const auto& [key, value] : stored) {
    const auto found = now.find(key);
    if (found == now.end()) {
      differences.push_back(fmt::format("{}: the file has '{}', this run does not", key, value));
    } else {
      compare_text(key, value, found->second, differences);
    }
  }
  for (const auto& [key, value] : now) {
    if (!stored.contains(key)) {
      differences.push_back(fmt::format("{}: this run has '{}', the file does not", key, value));
    }
  }
}

void compare_prompts(const std::vector<PromptRow>& stored, const std::vector<PromptRow>& now,
                     std::vector<std::string>& differences) {
  std::unordered_map<std::string, std::uint64_t> before;
  for (const auto& prompt : stored) before[prompt.id] = prompt.content_hash;
  std::vector<std::string> found;
  for (const auto& prompt : now) {
    const auto entry = before.find(prompt.id);
    if (entry == before.end()) {
      found.push_back(fmt::format("prompt '{}': not in the file", prompt.id));
    } else {
      if (entry->second != prompt.content_hash) {
        found.push_back(
            fmt::format("prompt '{}': tokens or sampling parameters differ", prompt.id));
      }
      before.erase(entry);
    }
  }
  for (const auto& prompt : stored) {  // in the file's order
    if (before.contains(prompt.id)) {
      found.push_back(fmt::format("prompt '{}': only in the file", prompt.id));
    }
  }
  if (found.size() > kMostListed) {
    const auto more = found.size() - kMostListed;
    found.resize(kMostListed);
    found.push_back(fmt::format("{} more prompts differ", more));
  }
  differences.insert(differences.end(), found.begin(), found.end());
}

}  // namespace

std::uint64_t prompt_content_hash(std::span<const std::int32_t> prompt_ids,
                                  std::string_view sampling_text) {
  const auto ids = xxh3_64(prompt_ids.data(), prompt_ids.size_bytes());
  return xxh3_64(sampling_text.data(), sampling_text.size(), ids);
}

std::vector<std::string> compare_run_facts(const RunFacts& stored, const RunFacts& now) {
  std::vector<std::string> differences;
  compare_keys(stored.token_keys, now.token_keys, differences);
  compare_text("checkpoint", stored.checkpoint_identity, now.checkpoint_identity, differences);
  compare_text("tokenizer SHA-256", stored.tokenizer_sha256, now.tokenizer_sha256, differences);
  compare_text("program version", stored.program_version, now.program_version, differences);
  if (!(stored.rank_invariant && now.rank_invariant)) {
    compare_text("ranks", fmt::format("{}", stored.num_ranks), fmt::format("{}", now.num_ranks),
                 differences);
  }
  compare_prompts(stored.prompts, now.prompts, differences);
  return differences;
}

ResumePlan plan_resume(const std::filesystem::path& file, const RunFacts& now) {
  const auto contents = read_result(file, {});
  const auto differences = compare_run_facts(contents.facts, now);
  if (!differences.empty()) {
    std::string list;
    for (const auto& line : differences) list += "\n  " + line;
    throw Error(
        ExitCode::kConfiguration,
        {.what = "cannot resume: tokens of this run could differ from those in the file" + list,
         .where = file.string(),
         .remedy = "restore what differs, or start a new output file"});
  }
  ResumePlan plan;
  for (const auto& row : contents.requests) {
    plan.completed.insert({row.id, row.concurrency, row.run_index, row.warmup});
  }
  for (const auto& session : contents.sessions) {
    plan.session = std::max(plan.session, session.session + 1);
    plan.ended = session.exit_code == static_cast<std::int64_t>(ExitCode::kDone) ||
                 session.exit_code == static_cast<std::int64_t>(ExitCode::kSomeFailed);
  }
  return plan;
}

}  // namespace tandem
