#include "parallel/transport.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"

namespace tandem {
namespace {

bool is_network(PathKind kind) {
  return kind == PathKind::kRdma || kind == PathKind::kSocket || kind == PathKind::kOtherNet;
}

struct SeenPair {
  std::vector<const PathSighting*> by_sender;
  std::vector<const PathSighting*> by_receiver;
};

PathKind worst(const std::vector<const PathSighting*>& lines) {
  PathKind kind = PathKind::kP2p;
  for (const auto* line : lines) kind = std::max(kind, line->kind);
  return kind;
}

std::string describe(const std::vector<const PathSighting*>& lines) {
  std::map<std::string, int> channels_by_path;
  for (const auto* line : lines) ++channels_by_path[line->path];
  std::vector<std::string> parts;
  for (const auto& [path, channels] : channels_by_path) {
    parts.push_back(fmt::format("{} on {} channel{}", path, channels, channels == 1 ? "" : "s"));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

RankPath judge_pair(int from, int to, const SeenPair& seen) {
  RankPath path{.from = from, .to = to, .kind = PathKind::kUnknown, .how = {}};
  const auto& lines = seen.by_sender.empty() ? seen.by_receiver : seen.by_sender;
  path.how = describe(lines);
  const PathKind kind = worst(lines);
  // Both ends write about a network connection, only the sender about the others.
  if (seen.by_sender.empty() || (is_network(kind) && seen.by_receiver.empty())) {
    path.how += fmt::format("; the {} wrote nothing about it",
                            seen.by_sender.empty() ? "sender" : "receiver");
  } else if (!seen.by_receiver.empty() && worst(seen.by_receiver) != kind) {
    path.how += "; the receiver says " + describe(seen.by_receiver);
  } else {
    path.kind = kind;
  }
  return path;
}

// Ranks that rank 0 reaches along `edges`.
std::set<int> reached(const std::vector<std::pair<int, int>>& edges) {
  std::set<int> seen{0};
  for (std::size_t before = 0; before != seen.size();) {
    before = seen.size();
    for (const auto& [from, to] : edges) {
      if (seen.contains(from)) seen.insert(to);
    }
  }
  return seen;
}

std::string refusal(const TransportEvidence& evidence) {
  std::string text = "RDMA is required and not proven: the ranks communicate by " + evidence.name;
  if (!evidence.pairs.empty()) {
    text += fmt::format(" ({}{})", evidence.pairs.front(), evidence.pairs.size() > 1 ? ", …" : "");
  }
  return text;
}

}  // namespace

std::string path_kind_name(PathKind kind) {
  switch (kind) {
    case PathKind::kP2p:
      return "P2P";
    case PathKind::kRdma:
      return "NET/IB";
    case PathKind::kShm:
      return "SHM";
    case PathKind::kOtherNet:
      return "NET, other";
    case PathKind::kSocket:
      return "NET/Socket";
    case PathKind::kUnknown:
      break;
  }
  return "unknown";
}

std::vector<RankPath> judge_paths(const std::vector<std::vector<PathSighting>>& sightings) {
  const auto size = static_cast<int>(sightings.size());
  std::map<std::pair<int, int>, SeenPair> pairs;
  if (size == 2) pairs = {{{0, 1}, {}}, {{1, 0}, {}}};
  for (int writer = 0; writer < size; ++writer) {
    for (const auto& line : sightings[static_cast<std::size_t>(writer)]) {
      const bool sender = line.side == PathSighting::Side::kSender;
      const bool in_range = std::min(line.from, line.to) >= 0 &&
                            std::max(line.from, line.to) < size && line.from != line.to;
      // A line about other ranks, or about another communicator, proves nothing.
      if (!in_range || writer != (sender ? line.from : line.to)) continue;
      auto& pair = pairs[{line.from, line.to}];
      (sender ? pair.by_sender : pair.by_receiver).push_back(&line);
    }
  }

  std::vector<RankPath> paths;
  std::vector<std::pair<int, int>> forward;
  std::vector<std::pair<int, int>> backward;
  for (const auto& [ranks, seen] : pairs) {
    const auto [from, to] = ranks;
    if (seen.by_sender.empty() && seen.by_receiver.empty()) {
      paths.push_back({.from = from, .to = to, .how = "no record of a connection"});
      continue;
    }
    paths.push_back(judge_pair(from, to, seen));
    forward.emplace_back(from, to);
    backward.emplace_back(to, from);
  }
  // More than two ranks are not all joined to each other, but each must be on the way of the data:
  // reach rank 0 and be reached by it.
  if (size > 2) {
    const auto from_root = reached(forward);
    const auto to_root = reached(backward);
    for (int r = 1; r < size; ++r) {
      if (!from_root.contains(r)) paths.push_back({.from = 0, .to = r, .how = "no way recorded"});
      if (!to_root.contains(r)) paths.push_back({.from = r, .to = 0, .how = "no way recorded"});
    }
  }
  return paths;
}

TransportEvidence mpi_transport(const RankLayout& layout) {
  if (layout.size == 1) return {.name = "single rank"};
  if (!layout.spans_hosts()) return {.name = "mpi, ranks of one host"};
  // MPI does not say which network its messages took.
  return {.name = "mpi between hosts, network unknown"};
}

TransportEvidence nccl_transport(const RankLayout& layout, const std::vector<RankPath>& paths) {
  TransportEvidence evidence;
  std::set<PathKind> kinds;
  std::vector<std::string> accepted_pairs;
  evidence.is_rdma = !paths.empty();
  for (const auto& path : paths) {
    const auto& from = layout.places.at(static_cast<std::size_t>(path.from));
    const auto& to = layout.places.at(static_cast<std::size_t>(path.to));
    const bool same_host = from.host_id == to.host_id;
    const bool accepted = path.kind == PathKind::kP2p || path.kind == PathKind::kRdma ||
                          (path.kind == PathKind::kShm && same_host);
    evidence.is_rdma = evidence.is_rdma && accepted;
    evidence.crosses_hosts_by_rdma =
        evidence.crosses_hosts_by_rdma || (!same_host && path.kind == PathKind::kRdma);
    kinds.insert(path.kind);
    const std::string text =
        fmt::format("{} -> {}: {}{}", path.from, path.to,
                    path.kind == PathKind::kUnknown ? "unknown, " : "", path.how);
    (accepted ? accepted_pairs : evidence.pairs).push_back(text);
  }
  // What refuses the job is what its message shows first.
  evidence.pairs.insert(evidence.pairs.end(), accepted_pairs.begin(), accepted_pairs.end());
  if (kinds.empty()) kinds.insert(PathKind::kUnknown);
  std::vector<std::string> names;
  for (auto kind = kinds.rbegin(); kind != kinds.rend(); ++kind) {
    names.push_back(path_kind_name(*kind));
  }
  evidence.name = fmt::format("nccl {}", fmt::join(names, " + "));
  return evidence;
}

void enforce_transport(TransportRequire require, const RankLayout& layout,
                       const TransportEvidence& evidence) {
  const bool rdma_wanted =
      require == TransportRequire::kRdma ||
      (require == TransportRequire::kAuto && layout.spans_hosts() && layout.tensor > 1);
  if (!rdma_wanted || evidence.is_rdma) return;
  throw Error(
      ExitCode::kTransport,
      {.what = refusal(evidence),
       .where = "transport.require",
       .expected = "a transport known to be RDMA",
       .remedy =
           "for NCCL check that /dev/infiniband exists here and that NCCL_IB_DISABLE, NCCL_NET "
           "and NCCL_IB_HCA do not rule the adapters out; or set transport.require: any to "
           "run on this transport; the result file says so"});
}

}  // namespace tandem
