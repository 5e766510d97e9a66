// What the RDMA adapters of this host have sent and received, from the kernel: proof that bytes
// really took that way, and a first look at a sick link.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace tandem {

struct RdmaPortCounters {
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
  std::int64_t errors = 0;  // retransmissions, time-outs, lost and damaged packets
};

// "mlx5_0/1" -> counters. Ports whose byte counters cannot be read are left out: empty means
// unknown, not zero. `root` is another one in tests.
using RdmaCounters = std::map<std::string, RdmaPortCounters>;
RdmaCounters read_rdma_counters(const std::filesystem::path& root = "/sys/class/infiniband");

// What was added from `before` to `after`, over the ports that are in both. A counter that was
// reset in between counts from zero.
RdmaPortCounters rdma_difference(const RdmaCounters& before, const RdmaCounters& after);

}  // namespace tandem
