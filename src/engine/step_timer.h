// Splits the wall time of a step into the columns of /steps. What a backend computes is measured
// between two marks in the order of its own work, so a GPU's time is the GPU's and costs no
// waiting. On a CPU collectives run on the host's clock and get a column of their own; on a GPU
// they are part of the passes they occur in.
#pragma once

#include <array>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/backend.h"
#include "parallel/device_comm.h"

namespace tandem {

struct StepSplit {
  double host_prepare_s = 0;
  double device_compute_s = 0;
  double collective_s = 0;
  double sample_verify_s = 0;
  double wait_rank_s = 0;
};

class StepTimer {
 public:
  StepTimer(const DeviceComm& comm, Backend& backend)
      : comm_(comm), backend_(backend), host_collectives_(backend.kind() == BackendKind::kCpu) {}

  // Marks that are not this class's to use, for spans that outlast a step.
  static constexpr int kFirstFreeMark = Backend::kNumMarks - 4;

  void start_step() {
    split_ = {};
    num_spans_ = 0;
    start_s_ = monotonic_s();
  }
  // A span that was measured elsewhere, of which so much were the host's collectives.
  void add_compute(double seconds, double in_collectives_s) {
    if (!host_collectives_) in_collectives_s = 0;
    split_.device_compute_s += seconds - in_collectives_s;
    split_.collective_s += in_collectives_s;
  }
  double start_s() const { return start_s_; }
  // Everything enqueued in the step must have been waited for.
  const StepSplit& finish_step() {
    for (int i = 0; i < num_spans_; ++i) {
      split_.*spans_[static_cast<std::size_t>(i)] += backend_.seconds_between(2 * i, 2 * i + 1);
    }
    num_spans_ = 0;
    return split_;
  }

  // Adds the backend's time for what a scope enqueues to one column.
  class Scope {
   public:
    Scope(StepTimer& timer, double StepSplit::*column) : timer_(timer), span_(timer.num_spans_++) {
      TANDEM_CHECK(2 * span_ + 1 < kFirstFreeMark);
      timer_.spans_[static_cast<std::size_t>(span_)] = column_ = column;
      collective_begin_s_ = timer.comm_.seconds_in_collectives();
      timer_.backend_.mark(2 * span_);
    }
    ~Scope() {
      timer_.backend_.mark(2 * span_ + 1);
      if (!timer_.host_collectives_) return;
      const double in_collectives = timer_.comm_.seconds_in_collectives() - collective_begin_s_;
      timer_.split_.*column_ -= in_collectives;
      timer_.split_.collective_s += in_collectives;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StepTimer& timer_;
    int span_;
    double StepSplit::*column_;
    double collective_begin_s_;
  };

  // Adds the host's time in a scope to one column.
  class HostScope {
   public:
    HostScope(StepTimer& timer, double StepSplit::*column)
        : timer_(timer), column_(column), begin_s_(monotonic_s()) {}
    ~HostScope() { timer_.split_.*column_ += monotonic_s() - begin_s_; }
    HostScope(const HostScope&) = delete;
    HostScope& operator=(const HostScope&) = delete;

   private:
    StepTimer& timer_;
    double StepSplit::*column_;
    double begin_s_;
  };

 private:
  const DeviceComm& comm_;
  Backend& backend_;
  bool host_collectives_;
  StepSplit split_;
  std::array<double StepSplit::*, Backend::kNumMarks / 2> spans_{};
  int num_spans_ = 0;
  double start_s_ = 0;
};

}  // namespace tandem
