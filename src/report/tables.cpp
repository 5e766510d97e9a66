#include "report/tables.h"

#include <fmt/format.h>
#include <fmt/ostream.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "base/units.h"
#include "output/columns.h"
#include "output/result_schema.h"
#include "report/methods.h"

namespace tandem {
namespace {

constexpr std::string_view kMissing = "-";

std::string number(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : std::string(kMissing);
}
std::string milliseconds(const std::optional<double>& value) {
  return value ? fmt::format("{:.1f}", 1e3 * *value) : std::string(kMissing);
}
std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f}", 100 * *share) : std::string(kMissing);
}
std::string lengths(const std::optional<LengthRange>& range) {
  if (!range) return std::string(kMissing);
  if (range->min == range->max) return fmt::format("{}", range->min);
  return fmt::format("{}..{}..{}", range->min, range->median, range->max);
}
std::string spread(const SummaryRow& row) {
  if (row.runs < 2 || !row.tokens_per_s_min) return std::string(kMissing);
  return fmt::format("{:.2f}..{:.2f}", *row.tokens_per_s_min, *row.tokens_per_s_max);
}

// Whether the row's requests found their prompts cached: cold, warm, or mixed.
std::string_view cache_state(const LevelReport& level) {
  if (level.warm_requests == 0) return "cold";
  return level.warm_requests == level.summary.requests ? "warm" : "mixed";
}

// The lines people want: cold and warm apart only where a level has both.
std::vector<const LevelReport*> telling_levels(const ResultReport& report) {
  std::vector<const LevelReport*> lines;
  const LevelReport* whole = nullptr;
  for (const auto& level : report.levels) {
    if (level.summary.cache == "all") whole = &level;
    const bool repeats = level.summary.cache != "all" && whole != nullptr &&
                         whole->summary.requests == level.summary.requests;
    if (!repeats) lines.push_back(&level);
  }
  return lines;
}

using Cells = std::vector<std::string>;

// Columns as wide as their widest cell, right-aligned.
void print_aligned(std::ostream& out, const std::vector<Cells>& rows) {
  std::vector<std::size_t> widths(rows.front().size(), 0);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line = " ";
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format(" {:>{}}", row[i], widths[i]);
    fmt::print(out, "{}\n", line);
  }
}

Cells level_cells(const LevelReport& level) {
  const auto& s = level.summary;
  return {fmt::format("{}", s.concurrency),
          s.session == 0 ? "all" : fmt::format("{}", s.session),
          std::string(cache_state(level)),
          fmt::format("{}", s.requests),
          fmt::format("{}", s.runs),
          lengths(level.prompt_tokens),
          lengths(level.completion_tokens),
          number(s.tokens_per_s, 2),
          spread(s),
          number(s.decode_tokens_per_s_p50, 2),
          milliseconds(s.ttft_s_p50),
          milliseconds(s.ttft_s_p95),
          milliseconds(s.itl_s_p50),
          milliseconds(s.itl_s_p95),
          milliseconds(s.itl_s_p99),
          percent(s.acceptance),
          fmt::format("{}", s.failed)};
}

void print_levels(std::ostream& out, const ResultReport& report) {
  std::vector<Cells> rows = {
      {"conc.", "session", "cache", "n", "runs", "prompt", "completion", "tok/s", "min..max",
       "tok/s/req", "TTFT p50", "p95", "ITL p50", "p95", "p99", "accept", "failed"},
      {"", "", "", "", "", "tokens", "tokens", "all", "of runs", "p50", "ms", "ms", "ms", "ms",
       "ms", "%", ""}};
  for (const auto* level : telling_levels(report)) rows.push_back(level_cells(*level));
  print_aligned(out, rows);
  fmt::print(out,
             "  n: requests; lengths are min..median..max; tok/s is all completion tokens over the "
             "wall time of the "
             "runs;\n  warm: part of the prompt came from the prefix cache; {} = missing\n",
             kMissing);
}

void print_acceptance(std::ostream& out, const ResultReport& report) {
  if (report.acceptance.empty()) return;
  fmt::print(out, "\n  accepted drafts by position (all levels, warm-up left out):");
  for (std::size_t i = 0; i < report.acceptance.size(); ++i) {
    const auto& at = report.acceptance[i];
    fmt::print(out, "  {}: {:.1f} % of {}", i + 1,
               100.0 * static_cast<double>(at.accepted) / static_cast<double>(at.proposed),
               at.proposed);
  }
  fmt::print(out, "\n");
}

void print_steps(std::ostream& out, const ResultReport& report) {
  if (report.steps.empty()) return;
  fmt::print(out, "\n  where the step time of rank 0 went (ms a step, warm-up left out):\n");
  std::vector<Cells> rows = {{"kind", "steps", "whole", "host", "device", "collective", "sampling",
                              "wait device", "wait rank"}};
  for (const auto& [kind, split] : report.steps) {
    const auto mean = [&steps = split.steps](const std::optional<double>& total) {
      return total ? fmt::format("{:.3f}", 1e3 * *total / static_cast<double>(steps))
                   : std::string(kMissing);
    };
    rows.push_back(
        {std::string(to_text(kind)), fmt::format("{}", split.steps), mean(split.duration_s),
         mean(split.host_prepare_s), mean(split.device_compute_s), mean(split.collective_s),
         mean(split.sample_verify_s), mean(split.wait_device_s), mean(split.wait_rank_s)});
  }
  print_aligned(out, rows);
}

void print_sessions(std::ostream& out, const ResultReport& report) {
  for (const auto& session : report.sessions) {
    const bool open = session.end_utc.empty();
    fmt::print(out, "  session {:<4} {} to {}, {}{}\n", session.session, session.start_utc,
               open ? "?" : session.end_utc, session.exit_status,
               open ? " (still running, or killed: the numbers cover what was saved)" : "");
  }
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

// A member of SummaryRow as CSV text; empty when missing.
struct CsvValue {
  const SummaryRow& row;

  template <typename Field>
  std::string operator()(Field SummaryRow::*member) const {
    if constexpr (std::is_same_v<Field, std::string>) {
      return csv_field(row.*member);
    } else if constexpr (std::is_same_v<Field, std::optional<double>> ||
                         std::is_same_v<Field, std::optional<std::int64_t>>) {
      return row.*member ? fmt::format("{}", *(row.*member)) : std::string();
    } else if constexpr (std::is_arithmetic_v<Field>) {
      return fmt::format("{}", row.*member);
    } else {
      return {};  // SummaryRow has no other kinds
    }
  }
};

struct JsonValue {
  const SummaryRow& row;

  template <typename Field>
  nlohmann::ordered_json operator()(Field SummaryRow::*member) const {
    if constexpr (std::is_same_v<Field, std::optional<double>> ||
                  std::is_same_v<Field, std::optional<std::int64_t>>) {
      return row.*member ? nlohmann::ordered_json(*(row.*member)) : nlohmann::ordered_json();
    } else if constexpr (std::is_arithmetic_v<Field> || std::is_same_v<Field, std::string>) {
      return row.*member;
    } else {
      return {};
    }
  }
};

nlohmann::ordered_json json_lengths(const std::optional<LengthRange>& range) {
  if (!range) return nullptr;
  return {{"min", range->min}, {"median", range->median}, {"max", range->max}};
}

nlohmann::ordered_json json_report(const ResultReport& report) {
  nlohmann::ordered_json json;
  json["file"] = report.file;
  for (const auto& line : condition_lines(report)) json["conditions"][line.name] = line.text;
  json["prompts"] = report.num_prompts;
  json["rows"] = report.num_rows;
  json["warmup_rows"] = report.warmup_rows;
  json["sessions"] = nlohmann::ordered_json::array();
  for (const auto& session : report.sessions) {
    json["sessions"].push_back({{"session", session.session},
                                {"start_utc", session.start_utc},
                                {"end_utc", session.end_utc},
                                {"exit_status", session.exit_status}});
  }
  json["summary"] = nlohmann::ordered_json::array();
  for (const auto& level : report.levels) {
    nlohmann::ordered_json row;
    for (const auto& column : schema::kSummary.columns) {
      row[std::string(column.name)] = std::visit(JsonValue{level.summary}, column.member);
    }
    row["prompt_length"] = json_lengths(level.prompt_tokens);
    row["completion_length"] = json_lengths(level.completion_tokens);
    row["warm_requests"] = level.warm_requests;
    row["slow_machine_requests"] = level.slow_machine_requests;
    json["summary"].push_back(std::move(row));
  }
  json["acceptance_by_position"] = nlohmann::ordered_json::array();
  for (const auto& at : report.acceptance) {
    json["acceptance_by_position"].push_back(
        {{"proposed", at.proposed}, {"accepted", at.accepted}});
  }
  json["failures"] = nlohmann::ordered_json::object();
  for (const auto& [name, rows] : report.failures) json["failures"][name] = rows;
  return json;
}

std::string latex_escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("&%$#_{}").find(c) != std::string_view::npos) out += '\\';
    if (c == '~' || c == '^' || c == '\\') {
      out += fmt::format("\\char{} ", static_cast<int>(c));
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

void print_terminal(std::ostream& out, const ResultReport& report) {
  fmt::print(out, "{}{}\n", report.file,
             report.passport.has("job.name") ? "  job " + report.passport.text("job.name") : "");
  for (const auto& line : condition_lines(report)) {
    fmt::print(out, "  {:<12} {}\n", line.name, line.text);
  }
  print_sessions(out, report);
  fmt::print(out, "  {:<12} {} prompts, {} rows of which {} warm-up\n", "requests",
             report.num_prompts, report.num_rows, report.warmup_rows);
  if (!report.failures.empty()) {
    std::string list;
    for (const auto& [name, rows] : report.failures) list += fmt::format("  {} x {}", rows, name);
    fmt::print(out, "  {:<12}{}\n", "failed", list);
  }
  if (report.lowest_available_bytes) {
    fmt::print(out, "  {:<12} lowest MemAvailable {}\n", "memory",
               format_bytes(*report.lowest_available_bytes));
  }
  fmt::print(out, "\n");
  if (report.levels.empty()) {
    fmt::print(out, "  no counted requests yet\n");
    return;
  }
  print_levels(out, report);
  std::int64_t slow = 0;
  for (const auto& level : report.levels) {
    if (level.summary.session == 0 && level.summary.cache == "all") {
      slow += level.slow_machine_requests;
    }
  }
  if (slow > 0) {
    fmt::print(out,
               "  WARNING: {} rows were made while the machine was more than 10 % slower than at "
               "its start\n",
               slow);
  }
  print_acceptance(out, report);
  print_steps(out, report);
}

void print_csv(std::ostream& out, const std::vector<ResultReport>& reports) {
  std::string header =
      "file,model,speculation,ranks,program,prompt_min,prompt_median,prompt_max,"
      "completion_min,completion_median,completion_max";
  for (const auto& column : schema::kSummary.columns) header += fmt::format(",{}", column.name);
  fmt::print(out, "{}\n", header);
  for (const auto& report : reports) {
    std::map<std::string, std::string> conditions;
    for (const auto& line : condition_lines(report)) conditions[line.name] = line.text;
    for (const auto& level : report.levels) {
      std::string line = csv_field(report.file);
      for (const auto* name : {"model", "speculation", "ranks", "program"}) {
        line += "," + csv_field(conditions[name]);
      }
      for (const auto& range : {level.prompt_tokens, level.completion_tokens}) {
        line += range ? fmt::format(",{},{},{}", range->min, range->median, range->max) : ",,,";
      }
      for (const auto& column : schema::kSummary.columns) {
        line += "," + std::visit(CsvValue{level.summary}, column.member);
      }
      fmt::print(out, "{}\n", line);
    }
  }
}

void print_json(std::ostream& out, const std::vector<ResultReport>& reports) {
  auto all = nlohmann::ordered_json::array();
  for (const auto& report : reports) all.push_back(json_report(report));
  // Passports may hold bytes that are not UTF-8 (environment variables): replaced, not fatal.
  fmt::print(out, "{}\n",
             all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void print_latex(std::ostream& out, const std::vector<ResultReport>& reports) {
  fmt::print(
      out,
      "% needs \\usepackage{{booktabs}}\n\\begin{{table}}\n\\centering\n"
      "\\begin{{tabular}}{{lrlrrrrrrrr}}\n\\toprule\n"
      "file & conc. & cache & $n$ & runs & tokens/s & min--max & TTFT p50 (ms) & ITL p50 (ms) & "
      "ITL p95 (ms) & accepted (\\%) \\\\\n\\midrule\n");
  std::string caption;
  for (const auto& report : reports) {
    const auto file = latex_escape(report.file.substr(report.file.rfind('/') + 1));
    std::optional<LengthRange> prompts;
    std::optional<LengthRange> completions;
    for (const auto* level : telling_levels(report)) {
      const auto& s = level->summary;
      if (s.session != 0) continue;
      if (s.cache == "all") {
        prompts = level->prompt_tokens;
        completions = level->completion_tokens;
      }
      auto range = spread(s);
      if (const auto dots = range.find(".."); dots != std::string::npos)
        range.replace(dots, 2, "--");
      fmt::print(out, "{} & {} & {} & {} & {} & {} & {} & {} & {} & {} & {} \\\\\n", file,
                 s.concurrency, cache_state(*level), s.requests, s.runs, number(s.tokens_per_s, 2),
                 range, milliseconds(s.ttft_s_p50), milliseconds(s.itl_s_p50),
                 milliseconds(s.itl_s_p95), percent(s.acceptance));
    }
    caption += fmt::format(" {}: ", file);
    for (const auto& line : condition_lines(report)) {
      if (line.name == "machine" || line.name == "system") continue;
      caption += fmt::format("{} {}; ", line.name, latex_escape(line.text));
    }
    caption += fmt::format(
        "prompts {} tokens, completions {} tokens (min..median..max), {} warm-up rows "
        "left out.",
        lengths(prompts), lengths(completions), report.warmup_rows);
  }
  fmt::print(
      out,
      "\\bottomrule\n\\end{{tabular}}\n\\caption{{Completion tokens over the wall time of the "
      "runs.{}}}\n\\end{{table}}\n",
      caption);
}

}  // namespace tandem
