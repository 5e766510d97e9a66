#include "report/methods.h"

#include <fmt/format.h>
#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include <filesystem>

namespace tandem {
namespace {

// "a, b, c" of the parts that are not empty.
std::string join_known(const std::vector<std::string>& parts, std::string_view separator = ", ") {
  std::vector<std::string> known;
  for (const auto& part : parts) {
    if (!part.empty()) known.push_back(part);
  }
  return fmt::format("{}", fmt::join(known, separator));
}

// "prefix VALUE suffix" when the passport has the attribute, nothing otherwise.
std::string known(const Passport& passport, std::string_view key, std::string_view prefix = "",
                  std::string_view suffix = "") {
  const auto value = passport.text(key);
  return value.empty() ? value : fmt::format("{}{}{}", prefix, value, suffix);
}

std::string model_name(const Passport& passport) {
  const auto path = passport.text("checkpoint.path");
  if (path.empty() || path == "<path>") return {};
  return std::filesystem::path(path).filename().string();
}

std::string speculation(const Passport& passport) {
  const auto method = passport.text("speculative.method");
  if (method.empty()) return {};
  if (method == "none") return "none";
  return method + known(passport, "speculative.tokens", ", ", " draft tokens a round");
}

std::string ranks(const Passport& passport) {
  const auto count = passport.text("ranks.count");
  if (count.empty()) return {};
  const auto split = join_known(
      {known(passport, "ranks.tensor", "tensor "), known(passport, "ranks.data", "data ")}, " x ");
  return fmt::format("{}{}", count, split.empty() ? "" : " (" + split + ")");
}

std::string lengths_text(const std::optional<LengthRange>& range) {
  if (!range) return "none";
  if (range->min == range->max) return fmt::format("{} tokens", range->min);
  return fmt::format("{} to {} tokens (median {})", range->min, range->max, range->median);
}

// The runs' spread, or that there is none to give.
std::string spread_text(const SummaryRow& row) {
  if (row.runs < 2 || !row.tokens_per_s_min) return "one run, no spread";
  return fmt::format("{} runs, {:.2f} to {:.2f} tokens/s", row.runs, *row.tokens_per_s_min,
                     *row.tokens_per_s_max);
}

}  // namespace

std::vector<ConditionLine> condition_lines(const ResultReport& report) {
  const auto& p = report.passport;
  const std::vector<ConditionLine> all = {
      {"model", join_known({model_name(p), known(p, "checkpoint.family"),
                            p.text("checkpoint.dummy_weights") == "1" ? "RANDOM WEIGHTS" : "",
                            known(p, "precision.activations", "activations "),
                            known(p, "precision.kv_cache", "KV cache "),
                            known(p, "precision.kv_scales", "KV scales ")})},
      {"speculation", speculation(p)},
      {"ranks", join_known({ranks(p), known(p, "transport", "transport ")})},
      {"machine", join_known({known(p, "host"), known(p, "cpu_model"), known(p, "memory_total"),
                              known(p, "backend", "backend ")})},
      {"system", join_known({known(p, "os_release"), known(p, "kernel")})},
      {"program",
       join_known({known(p, "program_version", "tandem "), known(p, "git_revision", "revision "),
                   known(p, "compiler"), known(p, "build_type"),
                   known(p, "determinism.level", "determinism ")})},
  };
  std::vector<ConditionLine> lines;
  for (const auto& line : all) {
    if (!line.text.empty()) lines.push_back(line);
  }
  return lines;
}

void print_methods(std::ostream& out, const ResultReport& report) {
  const auto& p = report.passport;
  std::string text = fmt::format(
      "Inference was run with Tandem {}",
      join_known({known(p, "program_version"), known(p, "git_revision", "(revision ", ")")}, " "));
  const auto model = join_known({model_name(p), known(p, "checkpoint.family", "(", ")")}, " ");
  if (!model.empty()) text += fmt::format(" on {}", model);
  const auto precision =
      join_known({known(p, "precision.activations", "", " activations"),
                  known(p, "precision.kv_cache", "a KV cache in "),
                  known(p, "precision.kv_scales", "KV scales "),
                  known(p, "precision.recurrent_state", "", " recurrent states")});
  if (!precision.empty()) text += fmt::format(" with {}", precision);
  text += ". ";
  if (p.text("checkpoint.dummy_weights") == "1") {
    text += "The weights were random: speeds are a rehearsal and the text has no meaning. ";
  }
  text +=
      fmt::format("The job ran on {} MPI rank{}",
                  report.sessions.empty() ? 1 : report.sessions.front().num_ranks,
                  !report.sessions.empty() && report.sessions.front().num_ranks == 1 ? "" : "s");
  const auto machine =
      join_known({known(p, "ranks.tensor", "tensor-parallel ", ""),
                  known(p, "ranks.data", "data-parallel ", ""), known(p, "backend", "backend "),
                  known(p, "cpu_model"), known(p, "os_release"), known(p, "kernel"),
                  known(p, "transport", "transport ")});
  text += machine.empty() ? ". " : fmt::format(" ({}). ", machine);
  const auto method = speculation(p);
  if (method == "none") text += "Speculative decoding was off. ";
  if (!method.empty() && method != "none") {
    text += fmt::format(
        "Speculative decoding ({}) was lossless: it does not change the "
        "distribution of the output. ",
        method);
  }
  text += fmt::format("The batch held {} requests{}. ", report.num_prompts,
                      known(p, "prompts.sha256", " (prompt file SHA-256 ", ")"));
  if (report.warmup_rows > 0) {
    text += fmt::format("{} warm-up rows are left out of all numbers. ", report.warmup_rows);
  }
  for (const auto& level : report.levels) {
    const auto& row = level.summary;
    if (row.session != 0 || row.cache != "all" || !row.tokens_per_s) continue;
    text += fmt::format(
        "At concurrency {}, {} requests ({} with a warm prefix cache) with prompts of {} and "
        "completions of {} gave {:.2f} completion tokens/s in aggregate over the wall time of the "
        "runs "
        "({})",
        row.concurrency, row.requests, level.warm_requests, lengths_text(level.prompt_tokens),
        lengths_text(level.completion_tokens), *row.tokens_per_s, spread_text(row));
    if (row.acceptance) {
      text += fmt::format("; {:.1f} % of {} drafted tokens were accepted", 100 * *row.acceptance,
                          row.drafted_tokens);
    }
    if (row.failed > 0) text += fmt::format("; {} requests failed", row.failed);
    text += ". ";
  }
  if (report.sessions.size() > 1) {
    text += fmt::format("The file was made in {} sessions; sums and rates cover all of them. ",
                        report.sessions.size());
  }
  const auto level = p.text("determinism.level");
  if (!level.empty()) text += fmt::format("Determinism level: {}. ", level);
  while (text.ends_with(' ')) text.pop_back();
  fmt::print(out, "{}\n", text);
}

}  // namespace tandem
