// A whole rank engine in a test: checkpoint, memory, weights, step loop; requests in, records out.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/rank_engine.h"
#include "output/records.h"
#include "prompts/request.h"

namespace tandem::testing {

// Settings that suit tests: the tiny checkpoint, no reserve, a KV pool of a few thousand tokens.
JobConfig tiny_job();

class EngineHarness {
 public:
  // Collective over `ranks`, all of which form one tensor-parallel group.
  EngineHarness(const HostComm& ranks, const JobConfig& job);

  // Runs the requests at most `concurrency` at a time. Every rank gets the records, in the order of
  // the requests. `on_round` sees each verified round.
  std::vector<RequestRecord> run(
      const std::vector<Request>& requests, int concurrency,
      std::function<void(const InFlight&, std::span<const std::int32_t>, int)> on_round = {});

  // A pass over prompt rows in slot 0, from position `start`; the slot is reset when start is 0.
  // Returns the head's input [ids, hidden] as floats.
  std::vector<float> prompt_pass(std::span<const std::int32_t> ids, int start = 0,
                                 bool ends_prompt = true);
  // Whole rows of logits [rows, vocab] for the last `rows` rows of the last pass.
  std::vector<float> last_logits(int rows);

  // Rounds of run() as where they are recorded: padded, and one ahead of the host.
  void as_recorded() { as_recorded_ = true; }

  // At least one, at most as many as the model has.
  void replace_stop_ids(std::vector<std::int32_t> ids) {
    ids.resize(files_.config.stop_ids.size(), ids.back());
    stop_ids_ = std::move(ids);
  }

  RankEngine& parts() { return *parts_; }
  const ModelFiles& files() const { return files_; }
  const std::vector<StepRecord>& steps() const { return steps_; }
  std::int64_t rounds_ahead() const { return rounds_ahead_; }  // of the last run()

 private:
  const HostComm& ranks_;
  JobConfig job_;
  RankLayout layout_;
  StepBeacon beacon_;
  ModelFiles files_;
  std::unique_ptr<RankEngine> parts_;
  std::vector<StepRecord> steps_;
  std::int64_t rounds_ahead_ = 0;
  std::vector<std::int32_t> stop_ids_;
  int last_rows_ = 0;
  bool as_recorded_ = false;
};

Request make_request(const std::string& id, std::vector<std::int32_t> prompt_ids, int max_tokens,
                     bool ignore_eos = true);

// [rows, columns] of any float type as floats.
std::vector<float> to_floats(const TensorView& view);
// ||a - b|| / ||b||; infinity for unequal sizes or NaN.
double relative_error(std::span<const float> a, std::span<const float> b);

}  // namespace tandem::testing
