// Splits the wall time of a step into the columns of /steps, on the host's clock. The CPU backend
// computes while the host waits, so "device compute" is the time in forward passes without the
// collectives inside them, and there is no waiting for a device.
#pragma once

#include "base/clock.h"
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
  explicit StepTimer(const DeviceComm& comm) : comm_(comm) {}

  void start_step() {
    split_ = {};
    start_s_ = monotonic_s();
  }
  double start_s() const { return start_s_; }
  const StepSplit& split() const { return split_; }

  // Adds the time of a scope to one column; collectives inside it go to their own.
  class Scope {
   public:
    Scope(StepTimer& timer, double StepSplit::*column)
        : timer_(timer),
          column_(column),
          begin_s_(monotonic_s()),
          collective_begin_s_(timer.comm_.seconds_in_collectives()) {}
    ~Scope() {
      const double in_collectives = timer_.comm_.seconds_in_collectives() - collective_begin_s_;
      timer_.split_.*column_ += monotonic_s() - begin_s_ - in_collectives;
      timer_.split_.collective_s += in_collectives;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StepTimer& timer_;
    double StepSplit::*column_;
    double begin_s_;
    double collective_begin_s_;
  };

 private:
  const DeviceComm& comm_;
  StepSplit split_;
  double start_s_ = 0;
};

}  // namespace tandem
