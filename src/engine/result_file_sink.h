// Rank 0's sink: hands the engine's records to the result file's writer and keeps count of
// failures.
#pragma once

#include "engine/result_sink.h"
#include "output/result_writer.h"

namespace tandem {

class ResultFileSink final : public ResultSink {
 public:
  explicit ResultFileSink(ResultWriter& writer) : writer_(writer) {}

  void request_finished(RequestRecord&& record) override {
    if (record.finish_reason == FinishReason::kError) ++num_failed_;
    writer_.submit(std::move(record));
  }
  void step_finished(const StepRecord& record) override { writer_.submit(record); }
  void canary_measured(const CanaryRecord& record) override { writer_.submit(record); }

  std::int64_t num_failed() const { return num_failed_; }

 private:
  ResultWriter& writer_;
  std::int64_t num_failed_ = 0;
};

}  // namespace tandem
