// The job file as plain structs: one struct a section, one field a key, defaults in the
// initializers. Keys, types, ranges and help texts are in job_keys.cpp; reading YAML is job_file's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tandem {

enum class LoadMode { kAuto, kDummy };
// How dummy weights are stored. kAuto: as the checkpoint's headers say, BF16 without any.
enum class DummyFormat { kAuto, kBf16, kFp8Block, kFp8Channel, kNvfp4, kInt8Group };
enum class BackendChoice { kAuto, kCpu, kCuda };
// Storage type of activations and of the KV cache in "auto": the production precision is bf16
// between modules with fp32 inside; fp32 is for checking numerics. kAuto means kBf16.
enum class ActivationDType { kAuto, kBf16, kFp32 };
enum class ExpertSplit { kAuto, kTensor, kExpert };
// kAuto: nccl on GPUs, MPI on CPUs. kHost: MPI, on GPUs through host memory.
enum class CollectivesChoice { kAuto, kNccl, kHost };
enum class AllocatorChoice { kAuto, kManaged, kDevice };
enum class KvDType { kAuto, kBf16, kFp32, kFp8Dynamic, kFp8Static, kFp8DsMla };
enum class NgramTable { kAuto, kResident, kMmap };
enum class SpeculativeMethod { kAuto, kNone, kMtp, kDspark, kDflash, kLookup };
enum class RunMode { kBatch, kBench };
enum class DeterminismLevel { kNone, kSchedule, kBatchInvariant, kRankInvariant };
enum class TransportRequire { kAuto, kAny, kRdma };
enum class ChatTemplateChoice { kAuto, kNone };
enum class StopScope { kAnswer, kAll };

struct ModelSection {
  std::string path;  // absolute after loading (the job file's directory is the base)
  LoadMode load = LoadMode::kAuto;
  DummyFormat dummy_format = DummyFormat::kAuto;
  std::optional<std::string> drafter;
  ActivationDType activation_dtype = ActivationDType::kAuto;
  bool operator==(const ModelSection&) const = default;
};

struct ParallelSection {
  std::optional<int> tensor;  // empty: ranks / data
  int data = 1;
  ExpertSplit experts = ExpertSplit::kAuto;
  CollectivesChoice collectives = CollectivesChoice::kAuto;
  bool operator==(const ParallelSection&) const = default;
};

struct MemorySection {
  AllocatorChoice allocator = AllocatorChoice::kAuto;
  std::int64_t reserve_bytes = std::int64_t{12} << 30;
  std::optional<std::int64_t> kv_bytes;  // empty: auto
  KvDType kv_dtype = KvDType::kAuto;
  bool kv_unit_scale = false;
  int page_tokens = 16;
  NgramTable ngram_table = NgramTable::kAuto;
  bool drop_page_cache = true;
  bool operator==(const MemorySection&) const = default;
};

struct SchedulerSection {
  int max_sequences = 8;
  int max_batched_tokens = 2048;
  std::optional<int> max_context;  // empty: auto = the model's limit
  int max_long_prefills = 1;
  int long_prefill_tokens = 8192;
  bool prefix_cache = true;
  bool operator==(const SchedulerSection&) const = default;
};

struct SpeculativeSection {
  SpeculativeMethod method = SpeculativeMethod::kAuto;  // auto: mtp where the checkpoint has one
  int tokens = 3;
  bool adaptive = false;
  bool operator==(const SpeculativeSection&) const = default;
};

struct SamplingSection {
  double temperature = 0.0;
  double top_p = 1.0;
  int top_k = 0;  // 0: off
  double min_p = 0.0;
  std::uint64_t seed = 0;
  int max_tokens = 300;
  std::vector<std::string> stop;
  StopScope stop_scope = StopScope::kAnswer;
  bool ignore_eos = false;
  bool operator==(const SamplingSection&) const = default;
};

struct PromptsSection {
  std::string file;  // absolute after loading
  std::optional<int> limit;
  ChatTemplateChoice chat_template = ChatTemplateChoice::kAuto;
  bool thinking = false;
  bool operator==(const PromptsSection&) const = default;
};

struct RunSection {
  RunMode mode = RunMode::kBatch;
  std::vector<int> concurrency{1, 2, 4, 8};
  int warmup = 1;
  int repeats = 3;
  DeterminismLevel determinism = DeterminismLevel::kBatchInvariant;
  double stall_timeout_s = 60;
  bool operator==(const RunSection&) const = default;
};

struct TransportSection {
  TransportRequire require = TransportRequire::kAuto;
  bool operator==(const TransportSection&) const = default;
};

struct OutputSection {
  std::string file = "results/{job}-{time}.h5";  // absolute after loading; {job}, {time} filled in
  bool text = true;
  int logprobs = 0;  // 1: the log-probability of each completion token
  bool steps = true;
  bool logit_hash = false;  // store a hash of each emitted token's fp32 logits
  double flush_every_s = 10;
  bool operator==(const OutputSection&) const = default;
};

struct JobConfig {
  std::string job = "job";
  ModelSection model;
  BackendChoice backend = BackendChoice::kAuto;
  ParallelSection parallel;
  MemorySection memory;
  SchedulerSection scheduler;
  SpeculativeSection speculative;
  SamplingSection sampling;
  PromptsSection prompts;
  RunSection run;
  TransportSection transport;
  OutputSection output;
  bool operator==(const JobConfig&) const = default;
};

}  // namespace tandem
