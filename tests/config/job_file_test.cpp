// Good job files: values, bases, overrides, origins, paths, and the way back from the resolved
// text.
#include "config/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/hash.h"
#include "config/job_keys.h"
#include "tests/support/test_data.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TempDir;
using testing::write_text;

constexpr const char* kMinimal = "model: {path: m}\nprompts: {file: p.jsonl}\n";

JobConfig from_text(const std::string& text) {
  return load_job_text(text, "job.yaml", "/base").config;
}

std::string origin_of(const ResolvedJob& job, const std::string& key) {
  for (const KeyOrigin& k : job.keys) {
    if (k.key == key) return k.origin;
  }
  return "(no such key)";
}

TEST(JobFile, DefaultsAreThoseOfTheStructs) {
  JobConfig expected;
  expected.model.path = "/base/m";
  expected.prompts.file = "/base/p.jsonl";
  expected.output.file = (std::filesystem::current_path() / "results/{job}-{time}.h5").string();
  EXPECT_EQ(from_text(kMinimal), expected);
}

// The example of the manual: flow maps, null, auto, and placeholders that YAML alone would refuse.
TEST(JobFile, ReadsEverySectionInFlowStyle) {
  const auto c = from_text(R"(job: four-tasks
model:
  path: ../models/Qwen3.8-27B
  load: dummy
  drafter: null
backend: cpu
parallel: {tensor: auto, data: 2, experts: expert}
memory:
  allocator: managed
  reserve: 12GiB
  kv: 1.5 GiB
  kv_dtype: fp8_dynamic
  page_tokens: 32
  ngram_table: mmap
  drop_page_cache: false
scheduler: {max_sequences: 4, max_batched_tokens: 512, max_context: 4096, prefix_cache: false}
speculative: {method: mtp, tokens: 5, adaptive: true}
sampling: {temperature: 7e-1, top_p: .9, top_k: 20, min_p: 1e-5, seed: 18446744073709551615, stop: ["a,b", "\n"]}
prompts: {file: prompts/x.jsonl, limit: 3, chat_template: none, thinking: true}
run:
  mode: bench
  concurrency: [1, 4]
  stall_timeout: 5m
transport: {require: rdma}
output: {file: results/{job}-{time}.h5, text: false, logprobs: 1, steps: false, flush_every: 0.5s}
)");
  EXPECT_EQ(c.job, "four-tasks");
  EXPECT_EQ(c.model.path, "/models/Qwen3.8-27B");
  EXPECT_EQ(c.model.load, LoadMode::kDummy);
  EXPECT_FALSE(c.model.drafter.has_value());
  EXPECT_EQ(c.backend, BackendChoice::kCpu);
  EXPECT_FALSE(c.parallel.tensor.has_value());
  EXPECT_EQ(c.parallel.data, 2);
  EXPECT_EQ(c.parallel.experts, ExpertSplit::kExpert);
  EXPECT_EQ(c.memory.reserve_bytes, std::int64_t{12} << 30);
  EXPECT_EQ(c.memory.kv_bytes, std::int64_t{3} << 29);
  EXPECT_EQ(c.memory.kv_dtype, KvDType::kFp8Dynamic);
  EXPECT_EQ(c.memory.page_tokens, 32);
  EXPECT_FALSE(c.memory.drop_page_cache);
  EXPECT_EQ(c.scheduler.max_context, 4096);
  EXPECT_EQ(c.speculative.tokens, 5);
  EXPECT_EQ(c.sampling.temperature, 0.7);
  EXPECT_EQ(c.sampling.top_p, 0.9);
  EXPECT_EQ(c.sampling.min_p, 1e-5);
  EXPECT_EQ(c.sampling.seed, 18446744073709551615u);
  EXPECT_THAT(c.sampling.stop, ElementsAre("a,b", "\n"));
  EXPECT_EQ(c.prompts.limit, 3);
  EXPECT_EQ(c.run.mode, RunMode::kBench);
  EXPECT_THAT(c.run.concurrency, ElementsAre(1, 4));
  EXPECT_EQ(c.run.stall_timeout_s, 300);
  EXPECT_EQ(c.transport.require, TransportRequire::kRdma);
  EXPECT_EQ(c.output.file, "/base/results/{job}-{time}.h5");
  EXPECT_EQ(c.output.flush_every_s, 0.5);
}

TEST(JobFile, WordsThatYamlTakesForBooleansAreTexts) {
  for (const std::string word : {"no", "on", "yes", "y", "123", "1e5", "true"}) {
    EXPECT_EQ(from_text(kMinimal + ("job: " + word)).job, word);
  }
}

TEST(JobFile, ListsAreTakenAsListOrCommaText) {
  const auto levels = [](const std::string& value) {
    return from_text(kMinimal + ("run: {concurrency: " + value + "}")).run.concurrency;
  };
  EXPECT_THAT(levels("[1, 2, 16]"), ElementsAre(1, 2, 16));
  EXPECT_THAT(levels("\"1, 2,16\""), ElementsAre(1, 2, 16));
  EXPECT_THAT(levels("16"), ElementsAre(16));
  const auto stops = [](const std::string& value) {
    return from_text(kMinimal + ("sampling:\n  stop: " + value)).sampling.stop;
  };
  EXPECT_THAT(stops("\"Question:\""), ElementsAre("Question:"));
  EXPECT_THAT(stops("Question, Answer"), ElementsAre("Question", "Answer"));
  EXPECT_THAT(stops("[]"), ElementsAre());
}

TEST(JobFile, EmptySectionIsAllowed) {
  EXPECT_EQ(from_text(std::string(kMinimal) + "memory:\n  # reserve: 1GiB\n"), from_text(kMinimal));
}

TEST(JobFile, ExtendsPutsKeysUnderneath) {
  const TempDir dir;
  std::filesystem::create_directories(dir / "jobs");
  std::filesystem::create_directories(dir / "configs/machines");
  write_text(dir / "configs/machines/box.yaml", "memory: {reserve: 2GiB, page_tokens: 32}\n");
  write_text(dir / "configs/model.yaml",
             "extends: machines/box.yaml\nmodel: {path: ../m}\nmemory:\n  reserve: 3GiB\n");
  write_text(dir / "jobs/a.yaml",
             "extends: ../configs/model.yaml\nprompts:\n  file: p.jsonl\nsampling: {seed: 4}\n");
  const auto job = load_job(dir / "jobs/a.yaml");
  EXPECT_EQ(job.config.model.path, (dir / "m").string());
  EXPECT_EQ(job.config.prompts.file, (dir / "jobs/p.jsonl").string());
  EXPECT_EQ(job.config.memory.reserve_bytes, std::int64_t{3} << 30);
  EXPECT_EQ(job.config.memory.page_tokens, 32);
  EXPECT_EQ(origin_of(job, "prompts.file"), (dir / "jobs/a.yaml").string() + ":3");
  EXPECT_EQ(origin_of(job, "memory.reserve"), (dir / "configs/model.yaml").string() + ":4");
  EXPECT_EQ(origin_of(job, "memory.page_tokens"),
            (dir / "configs/machines/box.yaml").string() + ":1");
  EXPECT_EQ(origin_of(job, "memory.kv"), "default");
  EXPECT_EQ(job.job_file_sha256, sha256_file_hex(dir / "jobs/a.yaml"));
}

TEST(JobFile, OverridesWinAndTheLastOfEqualsWins) {
  const std::vector<std::string> overrides{"sampling.temperature=0.5",  "run.concurrency=[2, 4]",
                                           "sampling.temperature=7e-1", "job=on",
                                           "output.file={job}.h5",      "prompts.limit=null",
                                           "prompts.file=a #b.jsonl",   "model.drafter=~",
                                           "sampling.stop=[\"x, y\"]"};
  const auto job = load_job_text("model: {path: m, drafter: d}\nprompts: {file: p, limit: 2}\n",
                                 "j", "/base", overrides);
  EXPECT_EQ(job.config.sampling.temperature, 0.7);
  EXPECT_THAT(job.config.run.concurrency, ElementsAre(2, 4));
  EXPECT_EQ(job.config.job, "on");
  EXPECT_FALSE(job.config.prompts.limit.has_value());
  EXPECT_FALSE(job.config.model.drafter.has_value());
  EXPECT_THAT(job.config.sampling.stop, ElementsAre("x, y"));
  const auto here = std::filesystem::current_path();
  EXPECT_EQ(job.config.output.file, (here / "{job}.h5").string());
  EXPECT_EQ(job.config.prompts.file, (here / "a #b.jsonl").string());
  EXPECT_EQ(job.config.model.path, "/base/m");
  EXPECT_EQ(origin_of(job, "sampling.temperature"), "--set");
  EXPECT_EQ(origin_of(job, "model.path"), "j:1");
}

TEST(JobFile, OverridesCanGiveRequiredKeys) {
  const std::vector<std::string> overrides{"model.path=/m", "prompts.file=/p"};
  EXPECT_EQ(load_job_text("job: a", "j", "/base", overrides).config.model.path, "/m");
}

// The passport's configuration must start the same job again: all values away from their defaults,
// and texts that need quoting.
TEST(JobFile, ResolvedYamlLoadsToTheSameJob) {
  JobConfig c;
  c.job = "w\"eird'#job";
  c.model = {"/m/a: b #c", LoadMode::kDummy, DummyFormat::kBf16, "/d\\{x}", ActivationDType::kFp32};
  c.backend = BackendChoice::kCuda;
  c.parallel = {4, 3, ExpertSplit::kTensor, CollectivesChoice::kHost};
  c.memory = {AllocatorChoice::kDevice, 1000, (std::int64_t{5} << 20) + 512,
              KvDType::kFp8DsMla,       true, 64,
              NgramTable::kResident,    false};
  c.scheduler = {3, 77, 1234, 2, 99, false};
  c.speculative = {SpeculativeMethod::kDflash, 16, true};
  c.sampling = {0.1,
                1e-300,
                5,
                0.3333333333333333,
                18446744073709551615u,
                17,
                {"\n\t", "\"\\", ",", "\u6708\u4eae", "null", "{job}", "\x01"},
                StopScope::kAll,
                true};
  c.prompts = {"/p/[x].jsonl", 5, ChatTemplateChoice::kNone, true};
  c.run = {RunMode::kBench, {3, 1}, 0, 7, DeterminismLevel::kRankInvariant, 0.1 + 3};
  c.transport = {TransportRequire::kAny};
  c.output = {"/out/{job}-{time}.h5", false, 1, false, true, 1.0 / 3};

  std::string yaml;
  for (const JobKey& key : job_keys()) {
    const auto dot = key.name.find('.');
    yaml += dot == std::string::npos ? key.name + ": " + key.get(c) + "\n" : "";
  }
  // Flow style here, block style in resolved_yaml: both are read.
  std::string open_section;
  for (const JobKey& key : job_keys()) {
    const auto dot = key.name.find('.');
    if (dot == std::string::npos) continue;
    const auto section = key.name.substr(0, dot);
    if (section != open_section) {
      yaml += (open_section.empty() ? "" : "}\n") + section + ": {";
    } else {
      yaml += ", ";
    }
    open_section = section;
    yaml += key.name.substr(dot + 1) + ": " + key.get(c);
  }
  yaml += "}\n";

  const auto first = load_job_text(yaml, "first", "/elsewhere");
  EXPECT_EQ(first.config, c);
  const auto second = load_job_text(first.resolved_yaml, "passport", "/elsewhere");
  EXPECT_EQ(second.config, c);
  EXPECT_EQ(second.resolved_yaml, first.resolved_yaml);
}

TEST(JobFile, ResolvedYamlOfDefaultsLoadsToTheSameJob) {
  const auto first = load_job_text(kMinimal, "first", "/base");
  EXPECT_EQ(load_job_text(first.resolved_yaml, "passport", "/elsewhere").config, first.config);
}

TEST(JobFile, OutputFileTakesJobAndTime) {
  JobConfig c;
  c.job = "sweep";
  c.output.file = "/r/{job}/{job}-{time}.h5";
  EXPECT_EQ(expand_output_file(c, "20260801T123456Z"), "/r/sweep/sweep-20260801T123456Z.h5");
}

TEST(JobFile, EffectiveTableListsEveryKeyOnceWithItsOrigin) {
  const std::vector<std::string> overrides{"sampling.seed=9"};
  const auto table = effective_table(load_job_text(kMinimal, "a.yaml", "/base", overrides));
  for (const JobKey& key : job_keys()) EXPECT_THAT(table, HasSubstr(key.name + " "));
  EXPECT_THAT(table, ::testing::ContainsRegex("sampling.seed +9 +--set\n"));
  EXPECT_THAT(table, ::testing::ContainsRegex("model.path +\"/base/m\" +a.yaml:1\n"));
  EXPECT_THAT(table, ::testing::ContainsRegex("memory.reserve +12GiB +default\n"));
}

TEST(JobKeys, DefaultsReadBackAndHelpNamesEveryKey) {
  const auto help = job_schema_help();
  for (const JobKey& key : job_keys()) {
    EXPECT_THAT(help, HasSubstr("  " + key.name + " "));
    EXPECT_FALSE(key.help.empty()) << key.name;
    EXPECT_FALSE(key.expected.empty()) << key.name;
  }
}

TEST(JobKeys, NearestKeyPrefersTheSameNameInAnotherSection) {
  EXPECT_EQ(nearest_job_key("scheduler.page_tokens"), "memory.page_tokens");
  EXPECT_EQ(nearest_job_key("sampling.max_token"), "sampling.max_tokens");
  EXPECT_EQ(nearest_job_key("max_token"), "sampling.max_tokens");
  EXPECT_EQ(nearest_job_key("memory.resreve"), "memory.reserve");
  EXPECT_EQ(nearest_job_key("model.file"), "prompts.file");
}

TEST(JobKeys, DeterminismLevelDecidesWhichKeysCanChangeTokens) {
  JobConfig c;
  c.run.determinism = DeterminismLevel::kSchedule;
  auto keys = token_affecting_keys(c);
  EXPECT_THAT(keys, ::testing::IsSupersetOf({"sampling.seed", "memory.kv_dtype",
                                             "memory.page_tokens", "parallel.tensor"}));
  c.run.determinism = DeterminismLevel::kBatchInvariant;
  keys = token_affecting_keys(c);
  EXPECT_THAT(keys, ::testing::IsSupersetOf({"sampling.seed", "parallel.tensor"}));
  EXPECT_THAT(keys, Not(::testing::Contains("memory.page_tokens")));
  c.run.determinism = DeterminismLevel::kRankInvariant;
  keys = token_affecting_keys(c);
  EXPECT_THAT(keys, ::testing::Contains("sampling.seed"));
  EXPECT_THAT(keys, Not(::testing::Contains("parallel.tensor")));
  for (const std::string name :
       {"model.path", "prompts.file", "output.file", "run.stall_timeout"}) {
    EXPECT_THAT(keys, Not(::testing::Contains(name)));
  }
}

TEST(JobKeys, ValueTextIsYaml) {
  JobConfig c;
  EXPECT_EQ(job_value_text(c, "memory.reserve"), "12GiB");
  EXPECT_EQ(job_value_text(c, "run.concurrency"), "[1, 2, 4, 8]");
  EXPECT_EQ(job_value_text(c, "speculative.method"), "auto");
  EXPECT_THROW(job_value_text(c, "no.key"), Error);
}

}  // namespace
}  // namespace tandem
