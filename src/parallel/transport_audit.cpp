#include "parallel/transport_audit.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/units.h"
#include "parallel/guard_link.h"
#include "parallel/nccl_log.h"
#include "parallel/rdma_counters.h"

namespace tandem {
namespace {

// What one rank tells the others.
struct RankReport {
  GroupCheckResult test;
  NcclLogFacts facts;
  std::int64_t rdma_sent_bytes = 0;
  bool rdma_readable = false;
};

std::string packed(const RankReport& report) {
  FrameWriter out;
  out.put(report.test.small_s).put(report.test.large_s);
  out.put(report.rdma_sent_bytes).put(report.rdma_readable);
  out.put(static_cast<std::uint32_t>(report.facts.paths.size()));
  for (const auto& seen : report.facts.paths) {
    out.put(seen.from).put(seen.to).put(seen.side).put(seen.kind).put_text(seen.path);
  }
  out.put(static_cast<std::uint32_t>(report.facts.devices.size()));
  for (const auto& device : report.facts.devices) out.put_text(device);
  return out.body();
}

RankReport unpacked(const std::string& bytes) {
  FrameReader in(bytes);
  RankReport report;
  report.test.small_s = in.get<double>();
  report.test.large_s = in.get<double>();
  report.rdma_sent_bytes = in.get<std::int64_t>();
  report.rdma_readable = in.get<bool>();
  report.facts.paths.resize(in.get<std::uint32_t>());
  for (auto& seen : report.facts.paths) {
    seen.from = in.get<int>();
    seen.to = in.get<int>();
    seen.side = in.get<PathSighting::Side>();
    seen.kind = in.get<PathKind>();
    seen.path = in.get_text();
  }
  report.facts.devices.resize(in.get<std::uint32_t>());
  for (auto& device : report.facts.devices) device = in.get_text();
  return report;
}

// Ranks of the world, replica by replica.
std::vector<RankPath> paths_of_all_replicas(const RankLayout& layout,
                                            const std::vector<RankReport>& reports) {
  std::vector<RankPath> paths;
  for (int replica = 0; replica < layout.data; ++replica) {
    const int first = replica * layout.tensor;
    std::vector<std::vector<PathSighting>> sightings;
    for (int r = 0; r < layout.tensor; ++r) {
      sightings.push_back(reports[static_cast<std::size_t>(first + r)].facts.paths);
    }
    for (auto& path : judge_paths(sightings)) {
      path.from += first;
      path.to += first;
      paths.push_back(std::move(path));
    }
  }
  return paths;
}

// A rank whose data leaves its host must have moved at least the large message once a repeat.
void add_doubts(const std::vector<RankPath>& paths, const std::vector<RankReport>& reports,
                const GroupCheckOptions& options, TransportEvidence& evidence) {
  for (const auto& path : paths) {
    if (path.kind != PathKind::kRdma) continue;
    const auto& report = reports[static_cast<std::size_t>(path.from)];
    if (counters_contradict(report.rdma_sent_bytes, options.large_bytes, report.rdma_readable)) {
      evidence.doubts.push_back(
          fmt::format("rank {}: NCCL says {}, but the adapters' counters grew by {} in a test that "
                      "sends {} several times",
                      path.from, path.how, format_bytes(report.rdma_sent_bytes),
                      format_bytes(options.large_bytes)));
    }
  }
}

}  // namespace

bool counters_contradict(std::int64_t sent_bytes, std::int64_t expected_bytes, bool readable) {
  return readable && sent_bytes < expected_bytes / 2;
}

TransportEvidence audit_transport(const HostComm& world, const RankLayout& layout,
                                  const HostComm& group, DeviceComm& comm, Backend& backend,
                                  const GroupCheckOptions& options) {
  const auto before = read_rdma_counters();
  RankReport own;
  own.test = check_group(group, comm, backend, options);
  own.rdma_readable = !before.empty();
  own.rdma_sent_bytes = rdma_difference(before, read_rdma_counters()).sent_bytes;
  const auto log = comm.connection_log();
  if (log) own.facts = parse_nccl_log(*log);

  std::vector<RankReport> reports;
  for (const auto& bytes : world.all_gather(packed(own))) reports.push_back(unpacked(bytes));

  TransportEvidence evidence;
  if (log) {
    const auto paths = paths_of_all_replicas(layout, reports);
    evidence = nccl_transport(layout, paths);
    add_doubts(paths, reports, options, evidence);
  } else {
    evidence = mpi_transport(layout);
  }
  for (std::size_t r = 0; r < reports.size(); ++r) {
    for (const auto& device : reports[r].facts.devices) {
      evidence.devices.push_back(fmt::format("rank {}: {}", r, device));
    }
  }
  if (layout.tensor == 1) return evidence;
  double small_s = 0;
  double large_s = 0;
  for (const auto& report : reports) {
    small_s = std::max(small_s, report.test.small_s);
    large_s = std::max(large_s, report.test.large_s);
  }
  evidence.latency_bytes = options.small_bytes;
  evidence.bandwidth_bytes = options.large_bytes;
  evidence.latency_us = small_s * 1e6;
  if (large_s > 0) {
    evidence.bandwidth_gb_s = static_cast<double>(options.large_bytes) / large_s / 1e9;
  }
  return evidence;
}

std::string describe_transport(const TransportEvidence& evidence) {
  std::string text = evidence.name;
  if (evidence.is_rdma) text += " (no sockets)";
  if (evidence.latency_us && evidence.bandwidth_gb_s) {
    text += fmt::format("; all-reduce of {} {:.1f} us, of {} {:.2f} GB/s, sums right",
                        format_bytes(evidence.latency_bytes), *evidence.latency_us,
                        format_bytes(evidence.bandwidth_bytes), *evidence.bandwidth_gb_s);
  }
  return text;
}

}  // namespace tandem
