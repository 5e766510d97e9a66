// The layout of the result file of a run: every dataset's name, type, units and meaning, once. The
// writer, the reader, the redaction and results/README.md (by test) all follow these tables. A
// change of meaning or a removal raises kSchemaVersion; an addition raises it too and says so in
// `since`.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "output/columns.h"
#include "output/records.h"

namespace tandem::schema {

inline constexpr std::int64_t kSchemaVersion = 2;
inline constexpr std::string_view kVersionAttribute = "schema_version";
inline constexpr std::string_view kFillAttribute = "_FillValue";

inline constexpr std::string_view kPassportGroup = "/passport";
inline constexpr std::string_view kFactsGroup = "/passport/run_facts";
// Passports of resumed sessions: /passport/session_2, ...
inline constexpr std::string_view kSessionPassportPrefix = "/passport/session_";

inline constexpr Column<RequestRow> kRequestColumns[] = {
    {"id", "1", "request id, as in the prompt file", &RequestRow::id},
    {"tags", "1", "the request's tags as canonical JSON; empty when it has none",
     &RequestRow::tags},
    {"session", "1", "start of the program that made the row; see /sessions", &RequestRow::session},
    {"run_index", "1", "repeat within the concurrency level, from 0", &RequestRow::run_index},
    {"concurrency", "requests", "level of the sweep, or the largest number in flight in batch mode",
     &RequestRow::concurrency},
    {"warmup", "1", "made before the counted runs; left out of /summary", &RequestRow::warmup},
    {"prompt_tokens", "tokens", "length of the prompt after template and tokenizer",
     &RequestRow::prompt_tokens},
    {"cached_prompt_tokens", "tokens", "prompt tokens taken from the prefix cache",
     &RequestRow::cached_prompt_tokens},
    {"warm", "1", "at least one prompt token came from the prefix cache", &RequestRow::warm},
    {"completion_tokens", "tokens", "tokens kept, thinking and answer, end token included",
     &RequestRow::completion_tokens},
    {"thinking_tokens", "tokens", "completion tokens inside the thinking block",
     &RequestRow::thinking_tokens},
    {"answer_tokens", "tokens", "completion tokens outside the thinking block",
     &RequestRow::answer_tokens},
    {"discarded_tokens", "tokens", "made by a step and cut behind a stop string; not in completion",
     &RequestRow::discarded_tokens},
    {"finish_reason", "1", "stop, length, error, cancelled or skipped", &RequestRow::finish_reason},
    {"error_class", "1", "kind of failure; empty unless the reason is error or skipped",
     &RequestRow::error_class, 256},
    {"error_text", "1", "the failure in words", &RequestRow::error_text, 1024},
    {"seed", "1", "seed of the request's random numbers", &RequestRow::seed},
    {"arrival_s", "s", "handed to the scheduler; since start of the session",
     &RequestRow::arrival_s},
    {"scheduled_s", "s", "first step that worked on it; since start of the session",
     &RequestRow::scheduled_s},
    {"first_token_s", "s", "first completion token; since start of the session",
     &RequestRow::first_token_s},
    {"last_token_s", "s", "last completion token; since start of the session",
     &RequestRow::last_token_s},
    {"queue_s", "s", "scheduled_s - arrival_s", &RequestRow::queue_s},
    {"ttft_s", "s", "time to first token: first_token_s - arrival_s", &RequestRow::ttft_s},
    {"decode_tokens_per_s", "tokens/s",
     "(completion_tokens - 1) / (last_token_s - first_token_s); missing below 2 tokens",
     &RequestRow::decode_tokens_per_s},
    {"draft_rounds", "rounds", "verification rounds with at least one draft",
     &RequestRow::draft_rounds},
    {"drafted_tokens", "tokens", "draft tokens verified", &RequestRow::drafted_tokens},
    {"accepted_tokens", "tokens", "draft tokens accepted", &RequestRow::accepted_tokens},
    {"bonus_tokens", "tokens", "target tokens behind a wholly accepted draft",
     &RequestRow::bonus_tokens},
    {"json_valid", "1", "the answer is valid JSON (1, 0); missing when not asked",
     &RequestRow::json_valid},
    {"line_count", "lines", "non-empty lines of the answer; missing when not asked",
     &RequestRow::line_count},
    {"python_compiles", "1", "the answer compiles as Python (1, 0); missing when not asked",
     &RequestRow::python_compiles},
    {"exact_match", "1", "the answer equals the reference (1, 0); missing without one",
     &RequestRow::exact_match},
    {"repetition", "1", "the completion ends in a loop", &RequestRow::repetition},
    {"empty_answer", "1", "nothing but white space outside the thinking block",
     &RequestRow::empty_answer},
    {"slow_machine", "1", "made while the canary ran more than 10 % slower than at start",
     &RequestRow::slow_machine},
};

inline constexpr Column<StepRecord> kStepColumns[] = {
    {"session", "1", "start of the program; see /sessions", &StepRecord::session},
    {"step", "1", "number of the step in its session, equal on all ranks", &StepRecord::step},
    {"rank", "1", "MPI rank", &StepRecord::rank},
    {"start_s", "s", "since start of the session", &StepRecord::start_s},
    {"duration_s", "s", "wall time of the step on this rank, from the end of the one before",
     &StepRecord::duration_s},
    {"kind", "1", "prompt (prompt rows) or round (generated rows)", &StepRecord::kind},
    {"concurrency", "requests", "level of the sweep being run", &StepRecord::concurrency},
    {"warmup", "1", "before the counted runs", &StepRecord::warmup},
    {"sequences", "sequences", "sequences the step worked on", &StepRecord::sequences},
    {"prompt_tokens", "tokens", "prompt rows computed, again after a preemption",
     &StepRecord::prompt_tokens},
    {"output_tokens", "tokens", "tokens appended to completions, each counted once",
     &StepRecord::output_tokens},
    {"draft_tokens", "tokens", "draft tokens verified", &StepRecord::draft_tokens},
    {"accepted_tokens", "tokens", "draft tokens accepted", &StepRecord::accepted_tokens},
    {"draft_depth", "tokens", "drafts asked for per sequence", &StepRecord::draft_depth},
    {"pages_in_use", "pages", "KV pages held after the step", &StepRecord::pages_in_use},
    {"waiting_requests", "requests", "not yet admitted, or preempted",
     &StepRecord::waiting_requests},
    {"host_prepare_s", "s", "host work that no work of the device covers",
     &StepRecord::host_prepare_s},
    {"device_compute_s", "s", "kernels, collectives apart", &StepRecord::device_compute_s},
    {"collective_s", "s", "collectives", &StepRecord::collective_s},
    {"sample_verify_s", "s", "sampling and verification", &StepRecord::sample_verify_s},
    {"wait_device_s", "s", "host waiting for the device", &StepRecord::wait_device_s},
    {"wait_rank_s", "s", "waiting for the other ranks, perhaps beside a running round",
     &StepRecord::wait_rank_s},
};

inline constexpr Column<MemoryRow> kMemoryColumns[] = {
    {"session", "1", "start of the program; see /sessions", &MemoryRow::session},
    {"time_s", "s", "since start of the session", &MemoryRow::time_s},
    {"rank", "1", "MPI rank", &MemoryRow::rank},
    {"phase", "1", "load, kernels, kv, capture, first_prefill or steady", &MemoryRow::phase},
    {"mem_available_bytes", "bytes", "MemAvailable of the host", &MemoryRow::mem_available_bytes},
    {"page_cache_bytes", "bytes", "Cached of the host", &MemoryRow::page_cache_bytes},
    {"swap_used_bytes", "bytes", "SwapTotal - SwapFree of the host", &MemoryRow::swap_used_bytes},
    {"rss_bytes", "bytes", "resident set of the rank", &MemoryRow::rss_bytes},
    {"major_faults", "faults", "major page faults of the rank since its start",
     &MemoryRow::major_faults},
    {"disk_read_bytes", "bytes", "read from storage by the rank since its start",
     &MemoryRow::disk_read_bytes},
    {"psi_some_avg10_percent", "percent", "memory pressure of the host: some, 10 s average",
     &MemoryRow::psi_some_avg10_percent},
    {"device_in_use_bytes", "bytes", "device memory in use by our own account",
     &MemoryRow::device_in_use_bytes},
};

inline constexpr Column<PowerSample> kPowerColumns[] = {
    {"session", "1", "start of the program; see /sessions", &PowerSample::session},
    {"time_s", "s", "since start of the session", &PowerSample::time_s},
    {"rank", "1", "MPI rank", &PowerSample::rank},
    {"gpu_utilization_percent", "percent", "GPU busy (NVML)",
     &PowerSample::gpu_utilization_percent},
    {"power_w", "W", "board power (NVML)", &PowerSample::power_w},
    {"sm_clock_hz", "Hz", "SM clock (NVML)", &PowerSample::sm_clock_hz},
    {"memory_clock_hz", "Hz", "memory clock (NVML)", &PowerSample::memory_clock_hz},
    {"temperature_c", "degC", "GPU temperature (NVML)", &PowerSample::temperature_c},
    {"network_received_bytes", "bytes", "received by the host's interfaces since boot",
     &PowerSample::network_received_bytes},
    {"network_sent_bytes", "bytes", "sent by the host's interfaces since boot",
     &PowerSample::network_sent_bytes},
};

inline constexpr Column<CanaryRecord> kCanaryColumns[] = {
    {"session", "1", "start of the program; see /sessions", &CanaryRecord::session},
    {"time_s", "s", "since start of the session", &CanaryRecord::time_s},
    {"rank", "1", "MPI rank", &CanaryRecord::rank},
    {"name", "1", "copy, gemv, gemm or acceptance", &CanaryRecord::name},
    {"duration_s", "s", "time of the fixed work", &CanaryRecord::duration_s},
    {"ratio_to_start", "1", "duration over that of the session's first run of it",
     &CanaryRecord::ratio_to_start},
    {"acceptance", "1", "accepted over drafted of the fixed prompt; missing for kernels",
     &CanaryRecord::acceptance},
    {"slow", "1", "more than 10 % slower than at start", &CanaryRecord::slow},
};

inline constexpr Column<LogEvent> kLogColumns[] = {
    {"session", "1", "start of the program; see /sessions", &LogEvent::session},
    {"time_s", "s", "since start of the session", &LogEvent::time_s},
    {"rank", "1", "MPI rank", &LogEvent::rank},
    {"level", "1", "info, warning or error", &LogEvent::level},
    {"text", "1", "the message", &LogEvent::text, 1024},
};

inline constexpr Column<GroupRecord> kGroupColumns[] = {
    {"session", "1", "start of the program; see /sessions", &GroupRecord::session},
    {"concurrency", "requests", "level of the sweep", &GroupRecord::concurrency},
    {"run_index", "1", "repeat within the level, from 0", &GroupRecord::run_index},
    {"warmup", "1", "before the counted runs", &GroupRecord::warmup},
    {"start_s", "s", "first request handed over; since start of the session",
     &GroupRecord::start_s},
    {"end_s", "s", "last request finished; missing when the session did not get there",
     &GroupRecord::end_s},
};

inline constexpr Column<SessionRow> kSessionColumns[] = {
    {"session", "1", "number of the start, from 1", &SessionRow::session},
    {"start_utc", "1", "start (UTC, ISO 8601)", &SessionRow::start_utc},
    {"end_utc", "1", "end (UTC, ISO 8601); empty while running and after a kill",
     &SessionRow::end_utc},
    {"exit_status", "1", "running (also after a kill), done, interrupted, or the kind of failure",
     &SessionRow::exit_status},
    {"exit_code", "1", "exit code of the process; missing while running and after a kill",
     &SessionRow::exit_code},
    {"host", "1", "host of rank 0", &SessionRow::host},
    {"num_ranks", "ranks", "MPI ranks", &SessionRow::num_ranks},
    {"program_version", "1", "version and revision of the program", &SessionRow::program_version},
};

inline constexpr Column<PromptRow> kPromptColumns[] = {
    {"id", "1", "request id, in file order", &PromptRow::id},
    {"content_hash", "1", "XXH3 of the prompt's token ids and sampling parameters",
     &PromptRow::content_hash},
};

inline constexpr Column<SummaryRow> kSummaryColumns[] = {
    {"concurrency", "requests", "level of the sweep", &SummaryRow::concurrency},
    {"session", "1", "0: all sessions together; else that session alone", &SummaryRow::session},
    {"cache", "1", "all, cold (no cached prompt token) or warm", &SummaryRow::cache},
    {"runs", "1", "repeats with at least one row", &SummaryRow::runs},
    {"requests", "requests", "rows, failed ones included, warm-up left out", &SummaryRow::requests},
    {"failed", "requests", "rows that ended in error, cancelled or skipped", &SummaryRow::failed},
    {"prompt_tokens", "tokens", "sum over the rows", &SummaryRow::prompt_tokens},
    {"completion_tokens", "tokens", "sum over the rows", &SummaryRow::completion_tokens},
    {"wall_s", "s", "wall time of the runs, added up; missing for cold and warm, which share it",
     &SummaryRow::wall_s},
    {"tokens_per_s", "tokens/s", "completion_tokens / wall_s", &SummaryRow::tokens_per_s},
    {"tokens_per_s_min", "tokens/s", "slowest run", &SummaryRow::tokens_per_s_min},
    {"tokens_per_s_max", "tokens/s", "fastest run", &SummaryRow::tokens_per_s_max},
    {"decode_tokens_per_s_mean", "tokens/s", "per request, mean",
     &SummaryRow::decode_tokens_per_s_mean},
    {"decode_tokens_per_s_p50", "tokens/s", "per request, median",
     &SummaryRow::decode_tokens_per_s_p50},
    {"decode_tokens_per_s_p5", "tokens/s", "per request, the slow end: 5 % are slower",
     &SummaryRow::decode_tokens_per_s_p5},
    {"ttft_s_p50", "s", "time to first token, median", &SummaryRow::ttft_s_p50},
    {"ttft_s_p95", "s", "time to first token, 95 %", &SummaryRow::ttft_s_p95},
    {"ttft_s_p99", "s", "time to first token, 99 %", &SummaryRow::ttft_s_p99},
    {"itl_s_p50", "s", "time per token after the first, median; tokens of a round share its time",
     &SummaryRow::itl_s_p50},
    {"itl_s_p95", "s", "time per token after the first, 95 %", &SummaryRow::itl_s_p95},
    {"itl_s_p99", "s", "time per token after the first, 99 %", &SummaryRow::itl_s_p99},
    {"drafted_tokens", "tokens", "draft tokens verified", &SummaryRow::drafted_tokens},
    {"accepted_tokens", "tokens", "draft tokens accepted", &SummaryRow::accepted_tokens},
    {"acceptance", "1", "accepted / drafted; missing without drafts", &SummaryRow::acceptance},
    {"tokens_per_round", "tokens", "1 + accepted / draft rounds; missing without rounds",
     &SummaryRow::tokens_per_round},
};

inline constexpr Table<RequestRow> kRequests{
    "/requests", "one row per request and run; a row is final", kRequestColumns};
inline constexpr Table<StepRecord> kSteps{"/steps", "one row per engine step and rank",
                                          kStepColumns};
inline constexpr Table<MemoryRow> kMemory{"/memory", "memory, about once a second per rank",
                                          kMemoryColumns};
inline constexpr Table<PowerSample> kPower{
    "/power", "power, clocks and network, about once a second per rank", kPowerColumns};
inline constexpr Table<CanaryRecord> kCanary{
    "/canary", "fixed work, timed at start and every few minutes", kCanaryColumns};
inline constexpr Table<LogEvent> kLog{"/log", "messages and events", kLogColumns};
inline constexpr Table<GroupRecord> kGroups{
    "/groups", "wall time of each run at each concurrency level", kGroupColumns};
inline constexpr Table<SessionRow> kSessions{"/sessions", "starts of the program on this file",
                                             kSessionColumns};
inline constexpr Table<PromptRow> kPrompts{"/prompts", "what the job was asked to do",
                                           kPromptColumns};
inline constexpr Table<SummaryRow> kSummary{
    "/summary", "per concurrency level, warm-up left out; written at the end of a session",
    kSummaryColumns};

// Calls visit(table) for each table, in the order of the file.
template <typename Visitor>
void for_each_table(Visitor&& visit) {
  visit(kRequests);
  visit(kSteps);
  visit(kMemory);
  visit(kPower);
  visit(kCanary);
  visit(kLog);
  visit(kGroups);
  visit(kSessions);
  visit(kPrompts);
  visit(kSummary);
}

// A dataset outside the tables: ragged data by request, its offsets, and the acceptance matrix.
struct Dataset {
  std::string_view path;
  ElementType type;
  std::string_view shape;
  std::string_view units;
  std::string_view description;
  bool may_miss = false;
  int since = 1;
};

// Row r of ragged data is flat[offsets[r] : offsets[r + 1]]; rows are those of /requests.
inline constexpr Dataset kPromptIds{"/tokens/prompt_ids", ElementType::kI32, "sum prompt_tokens",
                                    "1", "prompt token ids of all requests, one after another"};
inline constexpr Dataset kPromptOffsets{"/tokens/prompt_offsets", ElementType::kI64, "requests + 1",
                                        "tokens", "where each request's prompt_ids begin"};
inline constexpr Dataset kCompletionIds{"/tokens/completion_ids", ElementType::kI32,
                                        "sum completion_tokens", "1",
                                        "completion token ids of all requests"};
inline constexpr Dataset kCompletionOffsets{
    "/tokens/completion_offsets", ElementType::kI64, "requests + 1", "tokens",
    "where each request's completion_ids, time_s, step, logprob and logit_hash begin"};
inline constexpr Dataset kTokenTime{"/tokens/time_s", ElementType::kF64, "sum completion_tokens",
                                    "s", "when the token was known; since start of the session"};
inline constexpr Dataset kTokenStep{"/tokens/step", ElementType::kI64, "sum completion_tokens", "1",
                                    "the step of the session that made the token; see /steps"};
inline constexpr Dataset kLogprob{"/tokens/logprob",
                                  ElementType::kF64,
                                  "sum completion_tokens",
                                  "ln",
                                  "log-probability of the token; missing when not asked",
                                  true};
inline constexpr Dataset kLogitHash{"/tokens/logit_hash",
                                    ElementType::kU64,
                                    "sum completion_tokens",
                                    "1",
                                    "hash of the fp32 logits behind the token; missing when not "
                                    "asked",
                                    true};
inline constexpr Dataset kPromptText{"/text/prompt", ElementType::kU8, "sum bytes", "bytes",
                                     "prompts as rendered, UTF-8; empty when not asked"};
inline constexpr Dataset kPromptTextOffsets{"/text/prompt_offsets", ElementType::kI64,
                                            "requests + 1", "bytes",
                                            "where each request's prompt text begins"};
inline constexpr Dataset kCompletionText{"/text/completion", ElementType::kU8, "sum bytes", "bytes",
                                         "completions, UTF-8; empty when not asked"};
inline constexpr Dataset kCompletionTextOffsets{"/text/completion_offsets", ElementType::kI64,
                                                "requests + 1", "bytes",
                                                "where each request's completion text begins"};
inline constexpr Dataset kProposed{
    "/acceptance/proposed", ElementType::kI64, "requests x draft depth", "tokens",
    "drafts verified at each draft position, counted in the verifier"};
inline constexpr Dataset kAccepted{"/acceptance/accepted", ElementType::kI64,
                                   "requests x draft depth", "tokens",
                                   "of these, the drafts accepted; never more than proposed"};

inline constexpr const Dataset* kFlatDatasets[] = {
    &kPromptIds,  &kPromptOffsets,     &kCompletionIds,  &kCompletionOffsets,
    &kTokenTime,  &kTokenStep,         &kLogprob,        &kLogitHash,
    &kPromptText, &kPromptTextOffsets, &kCompletionText, &kCompletionTextOffsets,
    &kProposed,   &kAccepted};

// One line of the page and of the creation loop: table columns and flat datasets alike.
struct DatasetInfo {
  std::string path;
  ElementType type = ElementType::kF64;
  std::string shape;
  std::string units;
  std::string description;
  bool may_miss = false;
  int since = 1;
};

template <class Row>
std::vector<DatasetInfo> table_datasets(const Table<Row>& table) {
  std::vector<DatasetInfo> all;
  for (const auto& column : table.columns) {
    all.push_back({.path = fmt::format("{}/{}", table.group, column.name),
                   .type = column_type(column),
                   .shape = "rows",
                   .units = std::string(column.units),
                   .description = std::string(column.description),
                   .may_miss = column_may_miss(column),
                   .since = column.since});
  }
  return all;
}

std::vector<DatasetInfo> all_datasets();

}  // namespace tandem::schema
