// What the engine hands to the result file: one struct a table, one member a column. Names, units
// and descriptions of the columns are in result_schema.h; this file knows nothing of HDF5. A value
// that may be missing is a std::optional: it is stored as missing, never as 0 or NaN. Times are
// monotonic seconds since the start of the session (time zero is the same on all ranks as far as
// rank 0 knows).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/log.h"

namespace tandem {

enum class FinishReason : std::uint8_t { kStop, kLength, kError, kCancelled, kSkipped };
enum class StepKind : std::uint8_t { kPrompt, kRound };

// /requests. A row is final: a request that did not finish (interrupted, killed) has no row, so
// that a resumed session runs it again; a row with kError, kCancelled or kSkipped is not run again.
struct RequestRow {
  std::string id;
  std::string tags;              // canonical JSON; empty when absent
  std::int64_t run_index = 0;    // repeat number within the concurrency level, from 0
  std::int64_t concurrency = 1;  // the level of the sweep; max_sequences in batch mode
  bool warmup = false;
  std::int64_t cached_prompt_tokens = 0;
  std::int64_t thinking_tokens = 0;
  std::int64_t discarded_tokens = 0;  // made by a step, cut behind a stop string
  FinishReason finish_reason = FinishReason::kStop;
  std::string error_class;  // "invalid_prompt", "never_fits", ...; empty unless kError/kSkipped
  std::string error_text;
  std::uint64_t seed = 0;
  std::optional<double> arrival_s;
  std::optional<double> scheduled_s;
  std::optional<double> first_token_s;
  std::optional<double> last_token_s;
  std::int64_t draft_rounds = 0;
  std::int64_t bonus_tokens = 0;  // tokens of the target itself after a wholly accepted draft
  std::optional<bool> json_valid;
  std::optional<std::int64_t> line_count;
  std::optional<bool> python_compiles;
  std::optional<bool> exact_match;
  bool repetition = false;
  bool empty_answer = false;
  bool slow_machine = false;  // made while the canary was more than 10 % slower than at start

  // Derived by the writer from the above and the token arrays; leave alone.
  std::int64_t session = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t answer_tokens = 0;
  std::int64_t drafted_tokens = 0;
  std::int64_t accepted_tokens = 0;
  bool warm = false;  // at least one prompt token came from the prefix cache
  std::optional<double> queue_s;
  std::optional<double> ttft_s;
  std::optional<double> decode_tokens_per_s;  // (completion_tokens - 1) / (last - first)
};

// A finished request with its ragged data.
struct RequestRecord : RequestRow {
  std::vector<std::int32_t> prompt_ids;      // [prompt_tokens]
  std::vector<std::int32_t> completion_ids;  // [completion_tokens]
  std::vector<double> token_times_s;         // [completion_tokens]
  std::vector<std::int64_t> token_steps;    // [completion_tokens], StepRecord::step of this session
  std::vector<double> logprobs;             // [completion_tokens], or empty: not asked
  std::vector<std::uint64_t> logit_hashes;  // [completion_tokens], or empty: not asked
  std::vector<std::int64_t> draft_proposed;  // [draft depth], events counted in the verifier
  std::vector<std::int64_t> draft_accepted;  // [draft depth], each <= draft_proposed
  std::string prompt_text;                   // stored when output.text; else leave empty
  std::string completion_text;
};

// /steps: one engine step on one rank.
struct StepRecord {
  std::int64_t session = 0;  // set by the writer
  std::int64_t step = 0;     // from 0 in each session, equal on all ranks
  std::int64_t rank = 0;
  double start_s = 0;
  double duration_s = 0;
  StepKind kind = StepKind::kRound;
  std::int64_t concurrency = 1;  // the level being run
  bool warmup = false;
  std::int64_t sequences = 0;
  std::int64_t prompt_tokens = 0;  // prompt rows computed (again after a preemption)
  std::int64_t output_tokens = 0;  // tokens appended to completions, each counted once
  std::int64_t draft_tokens = 0;
  std::int64_t accepted_tokens = 0;
  std::int64_t draft_depth = 0;
  std::int64_t pages_in_use = 0;
  std::int64_t waiting_requests = 0;
  std::optional<double> host_prepare_s;
  std::optional<double> device_compute_s;
  std::optional<double> collective_s;
  std::optional<double> sample_verify_s;
  std::optional<double> wait_device_s;
  std::optional<double> wait_rank_s;
};

// /memory: one sample of one rank (memory/host_memory.h has the readings it is made from).
struct MemoryRow {
  std::int64_t session = 0;  // set by the writer
  double time_s = 0;
  std::int64_t rank = 0;
  std::string phase;  // load, kernels, kv, capture, first_prefill, steady
  std::optional<std::int64_t> mem_available_bytes;
  std::optional<std::int64_t> page_cache_bytes;
  std::optional<std::int64_t> swap_used_bytes;
  std::optional<std::int64_t> rss_bytes;
  std::optional<std::int64_t> major_faults;
  std::optional<std::int64_t> disk_read_bytes;
  std::optional<double> psi_some_avg10_percent;
  std::optional<std::int64_t> device_in_use_bytes;
};

// /power: one sample of one rank.
struct PowerSample {
  std::int64_t session = 0;  // set by the writer
  double time_s = 0;
  std::int64_t rank = 0;
  std::optional<double> gpu_utilization_percent;
  std::optional<double> power_w;
  std::optional<double> sm_clock_hz;
  std::optional<double> memory_clock_hz;
  std::optional<double> temperature_c;
  std::optional<std::int64_t> network_received_bytes;
  std::optional<std::int64_t> network_sent_bytes;
};

// /canary: one fixed kernel or prompt, timed.
struct CanaryRecord {
  std::int64_t session = 0;  // set by the writer
  double time_s = 0;
  std::int64_t rank = 0;
  std::string name;  // copy, gemv, gemm, acceptance
  double duration_s = 0;
  std::optional<double> ratio_to_start;  // duration over that of the first run of the session
  std::optional<double> acceptance;      // of the fixed prompt; missing for kernels
  bool slow = false;
};

// /log
struct LogEvent {
  std::int64_t session = 0;  // set by the writer
  double time_s = 0;
  std::int64_t rank = 0;
  LogLevel level = LogLevel::kInfo;
  std::string text;
};

// /groups: the wall time of one run at one concurrency level. Submitted at the start without end_s
// and again with it: the later one replaces the earlier (same session, concurrency and run_index).
struct GroupRecord {
  std::int64_t session = 0;  // set by the writer
  std::int64_t concurrency = 1;
  std::int64_t run_index = 0;
  bool warmup = false;
  double start_s = 0;
  std::optional<double> end_s;
};

// /sessions: one start of the program on this file. Kept by the writer.
struct SessionRow {
  std::int64_t session = 1;
  std::string start_utc;
  std::string end_utc;      // empty: still running, or killed
  std::string exit_status;  // running, done, interrupted, ...
  std::optional<std::int64_t> exit_code;
  std::string host;
  std::int64_t num_ranks = 1;
  std::string program_version;
};

// /prompts: what the job was asked to do, to check a resume against.
struct PromptRow {
  std::string id;
  std::uint64_t content_hash = 0;  // prompt_content_hash() in resume.h
};

// /summary; see summary.h for the rules.
struct SummaryRow {
  std::int64_t concurrency = 1;
  std::int64_t session = 0;  // 0: all sessions together
  std::string cache;         // all, cold, warm
  std::int64_t runs = 0;     // repeats with at least one row
  std::int64_t requests = 0;
  std::int64_t failed = 0;  // finish reason error, cancelled or skipped
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::optional<double> wall_s;
  std::optional<double> tokens_per_s;
  std::optional<double> tokens_per_s_min;  // over the runs
  std::optional<double> tokens_per_s_max;
  std::optional<double> decode_tokens_per_s_mean;
  std::optional<double> decode_tokens_per_s_p50;
  std::optional<double> decode_tokens_per_s_p5;
  std::optional<double> ttft_s_p50, ttft_s_p95, ttft_s_p99;
  std::optional<double> itl_s_p50, itl_s_p95, itl_s_p99;
  std::int64_t drafted_tokens = 0;
  std::int64_t accepted_tokens = 0;
  std::optional<double> acceptance;
  std::optional<double> tokens_per_round;
};

}  // namespace tandem
