#include "parallel/rdma_counters.h"

#include <fstream>
#include <optional>
#include <system_error>

namespace tandem {
namespace {

namespace fs = std::filesystem;

// port_xmit_data and port_rcv_data count words of four bytes (Documentation/ABI/stable/
// sysfs-class-infiniband of Linux).
constexpr std::int64_t kBytesPerWord = 4;

constexpr const char* kErrorCounters[] = {
    "hw_counters/out_of_sequence",       "hw_counters/packet_seq_err",
    "hw_counters/local_ack_timeout_err", "hw_counters/rnr_nak_retry_err",
    "hw_counters/roce_adp_retrans",      "counters/port_rcv_errors",
    "counters/port_xmit_discards",       "counters/symbol_error"};

std::optional<std::int64_t> read_number(const fs::path& file) {
  std::ifstream in(file);
  std::int64_t value = 0;
  if (!(in >> value) || value < 0) return std::nullopt;
  return value;
}

std::int64_t added(std::int64_t before, std::int64_t after) {
  return after >= before ? after - before : after;
}

}  // namespace

RdmaCounters read_rdma_counters(const fs::path& root) {
  RdmaCounters counters;
  std::error_code ignored;  // no adapters, or none that this container may see
  for (const auto& device : fs::directory_iterator(root, ignored)) {
    for (const auto& port : fs::directory_iterator(device.path() / "ports", ignored)) {
      const auto sent = read_number(port.path() / "counters/port_xmit_data");
      const auto received = read_number(port.path() / "counters/port_rcv_data");
      if (!sent || !received) continue;
      RdmaPortCounters& found =
          counters[device.path().filename().string() + "/" + port.path().filename().string()];
      found.sent_bytes = *sent * kBytesPerWord;
      found.received_bytes = *received * kBytesPerWord;
      for (const char* name : kErrorCounters) {
        found.errors += read_number(port.path() / name).value_or(0);
      }
    }
  }
  return counters;
}

RdmaPortCounters rdma_difference(const RdmaCounters& before, const RdmaCounters& after) {
  RdmaPortCounters sum;
  for (const auto& [port, now] : after) {
    const auto then = before.find(port);
    if (then == before.end()) continue;
    sum.sent_bytes += added(then->second.sent_bytes, now.sent_bytes);
    sum.received_bytes += added(then->second.received_bytes, now.received_bytes);
    sum.errors += added(then->second.errors, now.errors);
  }
  return sum;
}

}  // namespace tandem
