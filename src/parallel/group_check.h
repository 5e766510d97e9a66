// The start-up test of a tensor-parallel group: do its collectives give the right sums on every
// rank, and how fast are they. Runs on any DeviceComm, before memory is planned away and before
// weights are read.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "parallel/device_comm.h"
#include "parallel/host_comm.h"

namespace tandem {

struct GroupCheckOptions {
  std::int64_t small_bytes = 8 << 10;   // what one decode step sums at a time
  std::int64_t large_bytes = 32 << 20;  // allocated on the device for the time of the test
  int small_calls = 20;                 // between two looks at the clock
  int repeats = 7;                      // of which the median counts
};

// Collectives that pass through the host are slow, and many ranks may share its cores: they get a
// shorter check.
GroupCheckOptions default_group_check(const DeviceComm& comm);

struct GroupCheckResult {
  double small_s = 0;  // one all-reduce of small_bytes, enqueued back to back with others
  double large_s = 0;  // one all-reduce of large_bytes
};

// Collective over `group`, the ranks of `comm`. The result is this rank's. Throws
// Error{kTransport}, on all ranks, when a rank received a wrong sum or part; groups of one give
// zeros.
GroupCheckResult check_group(const HostComm& group, DeviceComm& comm, Backend& backend,
                             const GroupCheckOptions& options);

// What rank `rank` puts into element i: sums over up to 300 ranks are exact in fp32, whatever
// their order.
constexpr float group_check_value(int rank, std::int64_t i) {
  return static_cast<float>((rank + 1) * (i % 251 + 1));
}

}  // namespace tandem
