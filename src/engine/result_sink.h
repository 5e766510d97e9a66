// Where the engine's results go. On rank 0 the result file; on other leaders of a tensor-parallel
// group a message to rank 0; in tests a vector. Ranks that are no leader have none.
#pragma once

#include "output/records.h"

namespace tandem {

class ResultSink {
 public:
  virtual ~ResultSink() = default;
  virtual void request_finished(RequestRecord&& record) = 0;
  virtual void step_finished(const StepRecord& record) = 0;
  virtual void canary_measured(const CanaryRecord& record) = 0;
};

}  // namespace tandem
