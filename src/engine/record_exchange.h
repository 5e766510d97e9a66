// Records on their way to rank 0, which alone writes the result file: from the leaders of other
// replicas through messages between the steps, memory samples through the rank guard's connections.
// The columns are those of output/result_schema.h, so a new column travels by itself.
#pragma once

#include <string>

#include "engine/result_sink.h"
#include "output/records.h"
#include "parallel/host_comm.h"

namespace tandem {

std::string serialize(const MemoryRow& row);
MemoryRow deserialize_memory_row(const std::string& bytes);
std::string serialize(const PowerSample& row);
PowerSample deserialize_power_sample(const std::string& bytes);

// The sink of a replica's leader that is not rank 0. Posting does not wait for rank 0.
class ForwardingSink final : public ResultSink {
 public:
  explicit ForwardingSink(HostComm& comm) : comm_(comm) {}

  void request_finished(RequestRecord&& record) override;
  void step_finished(const StepRecord& record) override;
  void canary_measured(const CanaryRecord& record) override;
  // Everything of the group is on its way; waits until the messages are.
  void end_group();

 private:
  HostComm& comm_;
};

// Rank 0's end: hands what has arrived to `sink`.
class RecordReceiver {
 public:
  RecordReceiver(HostComm& comm, ResultSink& sink) : comm_(comm), sink_(sink) {}

  // Takes all waiting messages and returns at once.
  void poll();
  // Replicas whose end_group() has arrived since the last call to start_group().
  int groups_ended() const { return groups_ended_; }
  void start_group() { groups_ended_ = 0; }

 private:
  void deliver(const std::string& bytes);

  HostComm& comm_;
  ResultSink& sink_;
  int groups_ended_ = 0;
};

}  // namespace tandem
