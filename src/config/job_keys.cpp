#include "config/job_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "config/key_builders.h"

namespace tandem {
namespace {

// The field `path` of a const or mutable JobConfig.
#define TANDEM_FIELD(path) \
  [](auto& config) -> auto& { return config.path; }

std::string any_path(const std::string&) { return ""; }

std::string check_output_file(const std::string& path) {
  for (std::size_t open = path.find('{'); open != std::string::npos;
       open = path.find('{', open + 1)) {
    const auto word = path.substr(open, path.find('}', open) - open + 1);
    if (word != "{job}" && word != "{time}") {
      return fmt::format("'{}' is not a placeholder", word);
    }
  }
  if (path.back() == '/') return fmt::format("'{}' names no file", path);
  return "";
}

// The name becomes part of a file name.
JobKey job_name_key() {
  const auto parse = [](const RawValue& raw) -> Parsed<std::string> {
    auto parsed = parse_text(raw);
    if (!parsed.value) return parsed;
    const std::string& name = *parsed.value;
    const bool bad_character = std::any_of(name.begin(), name.end(), [](char c) {
      return c == '/' || c == '{' || c == '}' || static_cast<unsigned char>(c) <= 0x20 || c == 0x7f;
    });
    if (name.empty() || name.size() > 100 || name.front() == '.' || bad_character) {
      return {std::nullopt, describe(raw) + " cannot be part of a file name"};
    }
    return parsed;
  };
  return make_key(KeyType::kString,
                  {"job", "name of the job: in the result file's name and passport", ""},
                  "1 to 100 bytes without '/', braces, blanks and a leading '.'", TANDEM_FIELD(job),
                  parse, yaml_quoted);
}

JobKey seed_key() {
  return make_key(KeyType::kInteger,
                  {"sampling.seed", "seed of the random numbers", "", TokenEffect::kAlways},
                  "an integer from 0 to 18446744073709551615", TANDEM_FIELD(sampling.seed),
                  parse_unsigned, [](std::uint64_t value) { return fmt::format("{}", value); });
}

JobKey stop_key() {
  const auto parse = [](const RawValue& raw) -> Parsed<std::vector<std::string>> {
    const auto items = parse_list(raw, QuotedCommas::kRefuse);
    if (!items.value) return {std::nullopt, items.problem};
    std::vector<std::string> stops;
    for (const RawValue& item : *items.value) {
      auto text = parse_text(item);
      if (!text.value) return {std::nullopt, "in the list, " + text.problem};
      if (text.value->empty()) return {std::nullopt, "an empty stop string matches everywhere"};
      stops.push_back(std::move(*text.value));
    }
    return {stops, ""};
  };
  const auto print = [](const std::vector<std::string>& stops) {
    std::string out = "[";
    for (std::size_t i = 0; i < stops.size(); ++i) out += (i ? ", " : "") + yaml_quoted(stops[i]);
    return out + "]";
  };
  return make_key(KeyType::kStringList,
                  {"sampling.stop", "texts that end an answer", "", TokenEffect::kAlways},
                  "a list of texts, [\"a\", \"b\"]", TANDEM_FIELD(sampling.stop), parse, print);
}

JobKey concurrency_key() {
  const auto parse = [](const RawValue& raw) -> Parsed<std::vector<int>> {
    const auto items = parse_list(raw, QuotedCommas::kSplit);
    if (!items.value) return {std::nullopt, items.problem};
    if (items.value->empty()) return {std::nullopt, "the list is empty"};
    std::vector<int> levels;
    for (const RawValue& item : *items.value) {
      const auto level = check_integer(item, {1, 1024});
      if (!level.value) return {std::nullopt, "in the list, " + level.problem};
      const int value = static_cast<int>(*level.value);
      // Rows of the result file are grouped by level.
      if (std::find(levels.begin(), levels.end(), value) != levels.end()) {
        return {std::nullopt, fmt::format("{} appears twice", value)};
      }
      levels.push_back(value);
    }
    return {levels, ""};
  };
  const auto print = [](const std::vector<int>& levels) {
    return fmt::format("[{}]", fmt::join(levels, ", "));
  };
  return make_key(KeyType::kIntegerList,
                  {"run.concurrency", "bench mode: requests in flight, one group each", "requests",
                   TokenEffect::kBatch},
                  "a list of integers from 1 to 1024, [1, 2, 4]", TANDEM_FIELD(run.concurrency),
                  parse, print);
}

template <typename Enum>
using Choices = std::vector<std::pair<std::string, Enum>>;

const Choices<LoadMode> kLoadModes{{"auto", LoadMode::kAuto}, {"dummy", LoadMode::kDummy}};
const Choices<DummyFormat> kDummyFormats{
    {"auto", DummyFormat::kAuto},          {"bf16", DummyFormat::kBf16},
    {"fp8_block", DummyFormat::kFp8Block}, {"fp8_channel", DummyFormat::kFp8Channel},
    {"nvfp4", DummyFormat::kNvfp4},        {"int8_group", DummyFormat::kInt8Group}};
const Choices<ActivationDType> kActivationDTypes{{"auto", ActivationDType::kAuto},
                                                 {"bf16", ActivationDType::kBf16},
                                                 {"fp32", ActivationDType::kFp32}};
const Choices<BackendChoice> kBackends{
    {"auto", BackendChoice::kAuto}, {"cpu", BackendChoice::kCpu}, {"cuda", BackendChoice::kCuda}};
const Choices<ExpertSplit> kExpertSplits{{"auto", ExpertSplit::kAuto},
                                         {"tensor", ExpertSplit::kTensor},
                                         {"expert", ExpertSplit::kExpert}};
const Choices<CollectivesChoice> kCollectives{{"auto", CollectivesChoice::kAuto},
                                              {"nccl", CollectivesChoice::kNccl},
                                              {"host", CollectivesChoice::kHost}};
const Choices<AllocatorChoice> kAllocators{{"auto", AllocatorChoice::kAuto},
                                           {"managed", AllocatorChoice::kManaged},
                                           {"device", AllocatorChoice::kDevice}};
const Choices<KvDType> kKvDTypes{{"auto", KvDType::kAuto},
                                 {"bf16", KvDType::kBf16},
                                 {"fp32", KvDType::kFp32},
                                 {"fp8_dynamic", KvDType::kFp8Dynamic},
                                 {"fp8_static", KvDType::kFp8Static},
                                 {"fp8_ds_mla", KvDType::kFp8DsMla}};
const Choices<NgramTable> kNgramTables{
    {"auto", NgramTable::kAuto}, {"resident", NgramTable::kResident}, {"mmap", NgramTable::kMmap}};
const Choices<SpeculativeMethod> kMethods{
    {"auto", SpeculativeMethod::kAuto},     {"none", SpeculativeMethod::kNone},
    {"mtp", SpeculativeMethod::kMtp},       {"dspark", SpeculativeMethod::kDspark},
    {"dflash", SpeculativeMethod::kDflash}, {"lookup", SpeculativeMethod::kLookup}};
const Choices<StopScope> kStopScopes{{"answer", StopScope::kAnswer}, {"all", StopScope::kAll}};
const Choices<ChatTemplateChoice> kChatTemplates{{"auto", ChatTemplateChoice::kAuto},
                                                 {"none", ChatTemplateChoice::kNone}};
const Choices<RunMode> kRunModes{{"batch", RunMode::kBatch}, {"bench", RunMode::kBench}};
const Choices<DeterminismLevel> kDeterminismLevels{
    {"none", DeterminismLevel::kNone},
    {"schedule", DeterminismLevel::kSchedule},
    {"batch_invariant", DeterminismLevel::kBatchInvariant},
    {"rank_invariant", DeterminismLevel::kRankInvariant}};
const Choices<TransportRequire> kTransports{{"auto", TransportRequire::kAuto},
                                            {"any", TransportRequire::kAny},
                                            {"rdma", TransportRequire::kRdma}};

// {name, help, unit, token effect, presence}, field, range.
std::vector<JobKey> build_table() {
  using enum TokenEffect;
  using enum AbsentWord;
  const IntegerRule from_0{.low = 0};
  const IntegerRule from_1{.low = 1};
  return {
      job_name_key(),

      path_key({"model.path", "checkpoint", "", kNone, Presence::kRequired},
               "a directory with config.json and *.safetensors", TANDEM_FIELD(model.path),
               any_path),
      choice_key({"model.load", "dummy: random weights of the real shapes", "", kAlways},
                 TANDEM_FIELD(model.load), kLoadModes),
      choice_key({"model.dummy_format",
                  "storage of dummy weights, the matrices that published checkpoints quantize; "
                  "auto: as the headers of model.path say, bf16 without weights there",
                  "", kAlways},
                 TANDEM_FIELD(model.dummy_format), kDummyFormats),
      path_key(
          {"model.drafter", "drafter apart from the model, if the method needs one", "", kAlways},
          "a checkpoint directory", TANDEM_FIELD(model.drafter), any_path, kNull),
      choice_key(
          {"model.activation_dtype",
           "storage between modules; auto is bf16, fp32 is for checking numerics", "", kAlways},
          TANDEM_FIELD(model.activation_dtype), kActivationDTypes),

      choice_key({"backend", "auto: cuda where a GPU is found", "", kAlways}, TANDEM_FIELD(backend),
                 kBackends),

      integer_key({"parallel.tensor", "ranks that share one copy of the model; auto: ranks / data",
                   "ranks", kLayout},
                  TANDEM_FIELD(parallel.tensor), {1, 1024}, kAuto),
      integer_key(
          {"parallel.data", "independent copies that share the batch file", "copies", kLayout},
          TANDEM_FIELD(parallel.data), {1, 1024}),
      choice_key({"parallel.experts", "how mixture-of-experts layers are split", "", kLayout},
                 TANDEM_FIELD(parallel.experts), kExpertSplits),
      choice_key({"parallel.collectives",
                  "auto: nccl on GPUs; host: MPI through host memory, which ranks on one GPU need"},
                 TANDEM_FIELD(parallel.collectives), kCollectives),

      choice_key({"memory.allocator", "auto: a probe at start decides on unified memory"},
                 TANDEM_FIELD(memory.allocator), kAllocators),
      size_key({"memory.reserve", "left to the system on each host", "bytes", kBatch},
               TANDEM_FIELD(memory.reserve_bytes)),
      size_key({"memory.kv", "KV pool of each rank; auto: what the plan leaves", "bytes", kBatch},
               TANDEM_FIELD(memory.kv_bytes)),
      choice_key({"memory.kv_dtype",
                  "storage of keys and values; auto: as activations; fp8_dynamic: a scale for each "
                  "token and head; fp8_static: the checkpoint's scales",
                  "", kAlways},
                 TANDEM_FIELD(memory.kv_dtype), kKvDTypes),
      bool_key({"memory.kv_unit_scale",
                "accept fp8_static scales that are all 1.0 or missing (uncalibrated)", "", kAlways},
               TANDEM_FIELD(memory.kv_unit_scale)),
      integer_key({"memory.page_tokens", "size of a KV page", "tokens", kBatch},
                  TANDEM_FIELD(memory.page_tokens), {4, 256, IntegerRule::Shape::kPowerOfTwo}),
      choice_key({"memory.ngram_table", "n-gram embedding: rows split over ranks, or file-backed"},
                 TANDEM_FIELD(memory.ngram_table), kNgramTables),
      bool_key({"memory.drop_page_cache", "give the page cache of read shards back while loading"},
               TANDEM_FIELD(memory.drop_page_cache)),

      integer_key({"scheduler.max_sequences", "requests in flight at once", "requests", kBatch},
                  TANDEM_FIELD(scheduler.max_sequences), {1, 1024}),
      integer_key({"scheduler.max_batched_tokens", "rows of one engine step", "tokens", kBatch},
                  TANDEM_FIELD(scheduler.max_batched_tokens), {1, 1 << 20}),
      integer_key({"scheduler.max_context", "prompt and completion; auto: the model's limit",
                   "tokens", kAlways},
                  TANDEM_FIELD(scheduler.max_context), from_1, kAuto),
      integer_key({"scheduler.max_long_prefills", "long cold prompts prefilling at once",
                   "requests", kBatch},
                  TANDEM_FIELD(scheduler.max_long_prefills), {1, 1024}),
      integer_key(
          {"scheduler.long_prefill_tokens", "a prompt longer than this is long", "tokens", kBatch},
          TANDEM_FIELD(scheduler.long_prefill_tokens), from_1),
      bool_key({"scheduler.prefix_cache", "reuse the pages of equal beginnings", "", kBatch},
               TANDEM_FIELD(scheduler.prefix_cache)),

      choice_key({"speculative.method", "auto: mtp where the checkpoint has one", "", kAlways},
                 TANDEM_FIELD(speculative.method), kMethods),
      integer_key({"speculative.tokens",
                   "drafts of one round; what the drafter does not support is "
                   "refused",
                   "tokens", kAlways},
                  TANDEM_FIELD(speculative.tokens), {1, 16}),
      bool_key(
          {"speculative.adaptive", "depth from the measured step cost and acceptance", "", kAlways},
          TANDEM_FIELD(speculative.adaptive)),

      number_key({"sampling.temperature", "0: greedy", "", kAlways},
                 TANDEM_FIELD(sampling.temperature), {0, 100}),
      number_key({"sampling.top_p", "keep the likeliest tokens of this mass; 1: off", "", kAlways},
                 TANDEM_FIELD(sampling.top_p), {0, 1, NumberRule::Ends::kOpenLow}),
      integer_key({"sampling.top_k", "keep so many tokens; 0: off", "tokens", kAlways},
                  TANDEM_FIELD(sampling.top_k), from_0),
      number_key(
          {"sampling.min_p", "drop tokens below this share of the likeliest; 0: off", "", kAlways},
          TANDEM_FIELD(sampling.min_p), {0, 1, NumberRule::Ends::kOpenHigh}),
      seed_key(),
      integer_key({"sampling.max_tokens", "longest completion", "tokens", kAlways},
                  TANDEM_FIELD(sampling.max_tokens), from_1),
      stop_key(),
      choice_key(
          {"sampling.stop_scope", "answer: stop texts inside <think> do not count", "", kAlways},
          TANDEM_FIELD(sampling.stop_scope), kStopScopes),
      bool_key({"sampling.ignore_eos", "go on to max_tokens (for benchmarks)", "", kAlways},
               TANDEM_FIELD(sampling.ignore_eos)),

      path_key({"prompts.file", "prompt batch file", "", kNone, Presence::kRequired},
               "a JSONL file", TANDEM_FIELD(prompts.file), any_path),
      integer_key({"prompts.limit", "only the first requests of the file", "requests"},
                  TANDEM_FIELD(prompts.limit), from_1, kNull),
      choice_key({"prompts.chat_template", "none: prompts go in as they are", "", kAlways},
                 TANDEM_FIELD(prompts.chat_template), kChatTemplates),
      bool_key({"prompts.thinking", "let the chat template open a thinking part", "", kAlways},
               TANDEM_FIELD(prompts.thinking)),

      choice_key(
          {"run.mode", "batch: as fast as it goes; bench: the concurrency sweep", "", kAlways},
          TANDEM_FIELD(run.mode), kRunModes),
      concurrency_key(),
      integer_key(
          {"run.warmup", "bench mode: runs before the counted ones, kept and marked", "runs"},
          TANDEM_FIELD(run.warmup), {0, 1000}),
      integer_key({"run.repeats", "bench mode: counted runs of each level", "runs"},
                  TANDEM_FIELD(run.repeats), {1, 1000}),
      choice_key({"run.determinism", "what equal tokens are promised over", "", kAlways},
                 TANDEM_FIELD(run.determinism), kDeterminismLevels),
      duration_key(
          {"run.stall_timeout", "no step finished for so long: stop, save, say where", "seconds"},
          TANDEM_FIELD(run.stall_timeout_s), 1),

      choice_key({"transport.require", "auto: rdma when ranks span hosts"},
                 TANDEM_FIELD(transport.require), kTransports),

      path_key({"output.file", "result file; {job} and {time} are filled in"},
               "a file name; the only placeholders are {job} and {time}", TANDEM_FIELD(output.file),
               check_output_file),
      bool_key({"output.text", "store prompt and completion texts"}, TANDEM_FIELD(output.text)),
      integer_key(
          {"output.logprobs", "1: store each completion token's log-probability; 0: off", ""},
          TANDEM_FIELD(output.logprobs), {0, 1}),
      bool_key({"output.steps", "store one row per engine step and rank"},
               TANDEM_FIELD(output.steps)),
      bool_key({"output.logit_hash", "store a hash of each emitted token's fp32 logits"},
               TANDEM_FIELD(output.logit_hash)),
      duration_key({"output.flush_every", "finished requests reach the disk this often", "seconds"},
                   TANDEM_FIELD(output.flush_every_s), 0.1),
  };
}

#undef TANDEM_FIELD

std::pair<std::string_view, std::string_view> split_name(std::string_view name) {
  const auto dot = name.find('.');
  if (dot == std::string_view::npos) return {"", name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

// Optimal string alignment distance: insertions, deletions, changes and swaps of neighbours.
int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> d(a.size() + 1, std::vector<int>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = static_cast<int>(i);
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const int change = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::span<const JobKey> job_keys() {
  static const std::vector<JobKey> table = build_table();
  return table;
}

const JobKey* find_job_key(std::string_view name) {
  const auto keys = job_keys();
  const auto found =
      std::find_if(keys.begin(), keys.end(), [&](const JobKey& key) { return key.name == name; });
  return found == keys.end() ? nullptr : &*found;
}

bool is_job_section(std::string_view name) {
  const auto keys = job_keys();
  return !name.empty() && std::any_of(keys.begin(), keys.end(), [&](const JobKey& key) {
    return split_name(key.name).first == name;
  });
}

std::string nearest_job_key(std::string_view name) {
  const auto [section, leaf] = split_name(name);
  std::string nearest;
  int best = std::numeric_limits<int>::max();
  for (const JobKey& key : job_keys()) {
    const auto [key_section, key_leaf] = split_name(key.name);
    // The last part counts most: a key under the wrong section keeps its own name. A wrong section
    // costs at most as much as one letter, so that the section decides between equals.
    const int distance =
        8 * edit_distance(leaf, key_leaf) + std::min(7, edit_distance(section, key_section));
    if (distance < best) {
      best = distance;
      nearest = key.name;
    }
  }
  return nearest;
}

std::string job_schema_help() {
  const JobConfig defaults;
  std::string out =
      "Keys of the job file (YAML), with default, meaning and accepted values. Sections are maps:\n"
      "'memory: {reserve: 12GiB}'. 'extends: FILE' puts the keys of another file underneath. "
      "Paths\n"
      "are relative to the file that sets them. A list is written as [1, 2] or as one text, "
      "\"1,2\".\n";
  std::string_view section;
  for (const JobKey& key : job_keys()) {
    const auto key_section = split_name(key.name).first;
    if (key_section != section) out += "\n";
    section = key_section;
    const auto shown =
        key.presence == Presence::kRequired ? std::string("(required)") : key.get(defaults);
    const auto unit = key.unit.empty() ? "" : " [" + key.unit + "]";
    out += fmt::format("  {:<30} {:<17}", key.name, shown);
    if (shown.size() > 17) out += fmt::format("\n  {:<30} {:<17}", "", "");
    out += fmt::format(" {}{}\n", key.help, unit);
    out += fmt::format("  {:<30} {:<17} {}\n", "", "", key.expected);
  }
  return out;
}

std::vector<std::string> token_affecting_keys(const JobConfig& config) {
  const auto level = config.run.determinism;
  std::vector<std::string> names;
  for (const JobKey& key : job_keys()) {
    const bool counts =
        key.token_effect == TokenEffect::kAlways ||
        (key.token_effect == TokenEffect::kLayout && level < DeterminismLevel::kRankInvariant) ||
        (key.token_effect == TokenEffect::kBatch && level < DeterminismLevel::kBatchInvariant);
    if (counts) names.push_back(key.name);
  }
  return names;
}

std::string job_value_text(const JobConfig& config, std::string_view key) {
  const JobKey* found = find_job_key(key);
  TANDEM_CHECK(found != nullptr, "no key {}", key);
  return found->get(config);
}

}  // namespace tandem
