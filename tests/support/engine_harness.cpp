#include "tests/support/engine_harness.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

#include "base/clock.h"
#include "tests/support/test_data.h"

namespace tandem::testing {
namespace {

class CollectingSink final : public ResultSink {
 public:
  void request_finished(RequestRecord&& record) override {
    records.emplace(record.id, std::move(record));
  }
  void step_finished(const StepRecord& record) override { steps.push_back(record); }
  void canary_measured(const CanaryRecord&) override {}

  std::map<std::string, RequestRecord> records;
  std::vector<StepRecord> steps;
};

}  // namespace

JobConfig tiny_job() {
  JobConfig job;
  job.model.path = test_data("tiny-qwen3.8").string();
  job.backend = BackendChoice::kCpu;
  // The same tests on a GPU: TANDEM_TEST_BACKEND=cuda. Managed memory, since they look at it.
  if (const char* backend = std::getenv("TANDEM_TEST_BACKEND");
      backend != nullptr && std::string(backend) == "cuda") {
    job.backend = BackendChoice::kCuda;
    job.memory.allocator = AllocatorChoice::kManaged;
  }
  job.memory.reserve_bytes = 0;
  job.memory.kv_bytes = std::int64_t{64} << 20;
  job.scheduler.max_batched_tokens = 256;
  job.scheduler.max_context = 2048;
  return job;
}

EngineHarness::EngineHarness(const HostComm& ranks, const JobConfig& job)
    : ranks_(ranks),
      job_(job),
      layout_(agree_rank_layout(ranks, job.parallel)),
      files_(open_model_files(job.model)),
      parts_(std::make_unique<RankEngine>(RankEngineInputs{.job = job_,
                                                           .files = files_,
                                                           .world = ranks_,
                                                           .layout = layout_,
                                                           .beacon = beacon_,
                                                           .on_phase = {},
                                                           .on_load = {}})) {}

std::vector<RequestRecord> EngineHarness::run(
    const std::vector<Request>& requests, int concurrency,
    std::function<void(const InFlight&, std::span<const std::int32_t>, int)> on_round) {
  CollectingSink sink;
  Engine engine(
      {.backend = parts_->backend(),
       .comm = parts_->comm(),
       .group = parts_->group(),
       .beacon = beacon_,
       .program = parts_->program(),
       .tokenizer = files_.tokenizer,
       .sink = &sink,
       .stop_reason = {},
       .on_status = {},
       .on_round = std::move(on_round)},
      {.limits = parts_->plan().limits,
       .sample = {.logprobs = job_.output.logprobs > 0, .logit_hashes = job_.output.logit_hash},
       .store_text = true,
       .store_steps = true,
       .stop_ids = stop_ids_.empty() ? files_.config.stop_ids : stop_ids_,
       .clear_cache_between_groups = true,
       .adaptive_depth = job_.speculative.adaptive,
       .as_recorded = as_recorded_,
       .time_zero_s = monotonic_s()});
  std::vector<const Request*> pointers;
  for (const auto& r : requests) pointers.push_back(&r);
  engine.run_group({.concurrency = concurrency}, pointers);
  engine.scheduler().check_integrity();
  steps_ = std::move(sink.steps);
  rounds_ahead_ = engine.num_rounds_ahead();
  std::vector<RequestRecord> out;
  for (const auto& r : requests) out.push_back(std::move(sink.records.at(r.id)));
  return out;
}

std::vector<float> EngineHarness::prompt_pass(std::span<const std::int32_t> ids, int start,
                                              bool ends_prompt) {
  auto& program = parts_->program();
  const auto& shape = parts_->plan().limits.shape;
  if (start == 0) program.reset_slot(parts_->backend(), 0);
  for (int page = 0; page < std::min(shape.num_pages, shape.pages_per_sequence); ++page) {
    program.tables().page_table[page] = page;
  }
  program.tables().pending_rows[0] = 0;
  auto& batch = program.batch();
  batch.clear(ops::RowClass::kPrompt);
  batch.add_segment(0, start, ends_prompt);
  for (const auto id : ids) batch.add_row(id);
  program.model().forward(parts_->context(), batch.upload(parts_->backend()), program.hidden());
  if (program.drafter() != nullptr) {
    program.drafter()->observe_prompt(parts_->context(), batch, program.hidden());
  }
  parts_->backend().synchronize();
  last_rows_ = static_cast<int>(ids.size());
  return to_floats(TensorView(program.hidden(), shape.activations,
                              {last_rows_, program.model().hidden_width()}));
}

std::vector<float> EngineHarness::last_logits(int rows) {
  auto& program = parts_->program();
  auto& model = program.model();
  const auto& shard = model.vocab_shard();
  const auto ranks = static_cast<std::int64_t>(parts_->comm().size());
  const auto row_bytes =
      model.hidden_width() *
      static_cast<std::int64_t>(dtype_bytes(parts_->plan().limits.shape.activations));
  // The sampler's place for logits: the device can write it, the host can read it.
  float* part = program.logits();
  const auto gathered_bytes = static_cast<std::size_t>(shard.padded_rows * ranks) * sizeof(float);
  auto& backend = parts_->backend();
  auto* all = static_cast<float*>(backend.allocate(gathered_bytes, MemoryKind::kHostVisible));
  std::vector<float> out;
  for (int r = last_rows_ - rows; r < last_rows_; ++r) {
    model.logits(parts_->context(), static_cast<const std::byte*>(program.hidden()) + r * row_bytes,
                 1, part);
    parts_->comm().all_gather(part, all,
                              shard.padded_rows * static_cast<std::int64_t>(sizeof(float)));
    backend.synchronize();
    out.insert(out.end(), all, all + shard.vocab_size);
  }
  backend.deallocate(all, gathered_bytes, MemoryKind::kHostVisible);
  return out;
}

Request make_request(const std::string& id, std::vector<std::int32_t> prompt_ids, int max_tokens,
                     bool ignore_eos) {
  Request request;
  request.id = id;
  request.prompt_ids = std::move(prompt_ids);
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = ignore_eos;
  return request;
}

std::vector<float> to_floats(const TensorView& view) {
  std::vector<float> out(static_cast<std::size_t>(view.numel()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = view.dtype == DType::kBF16 ? to_float(view.as<bf16>()[i]) : view.as<float>()[i];
  }
  return out;
}

double relative_error(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = double{a[i]} - double{b[i]};
    difference += d * d;
    norm += double{b[i]} * double{b[i]};
  }
  const double error = std::sqrt(difference / norm);
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

}  // namespace tandem::testing
