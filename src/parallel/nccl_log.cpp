#include "parallel/nccl_log.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace tandem {
namespace {

constexpr std::string_view kMark = "NCCL INFO ";
constexpr std::size_t kMaxPathLength = 80;

// Takes what is expected off the front of a text; after the first disappointment nothing matches.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : rest_(text) {}
  bool ok() const { return ok_; }
  std::string_view rest() const { return rest_; }

  bool skip_if(std::string_view word) {
    if (!ok_ || !rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  void skip(std::string_view word) { ok_ = skip_if(word); }
  int number() {
    int value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    ok_ = ok_ && error == std::errc() && value >= 0;
    if (ok_) rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }
  // "3[1]", "3[c7000]" (the bus in older versions), "3" (the oldest).
  int rank() {
    const int value = number();
    if (!skip_if("[")) return value;
    const auto digits = rest_.find_first_not_of("0123456789abcdef");
    ok_ = ok_ && digits != std::string_view::npos && digits > 0 && rest_[digits] == ']';
    if (ok_) rest_.remove_prefix(digits + 1);
    return value;
  }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

// "Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0"
std::optional<PathSighting> parse_path(std::string_view message) {
  Cursor at(message);
  if (!at.skip_if("Channel ")) at.skip("Ring ");
  at.number();
  if (at.skip_if("/")) at.number();
  at.skip(" : ");
  PathSighting seen;
  seen.from = at.rank();
  at.skip(" -> ");
  seen.to = at.rank();
  if (at.skip_if(" [receive]")) {
    seen.side = PathSighting::Side::kReceiver;
  } else {
    at.skip_if(" [send]");
  }
  at.skip(" via ");
  if (!at.ok() || at.rest().empty() || at.rest().size() > kMaxPathLength) return std::nullopt;
  seen.path = at.rest();
  seen.kind = classify_nccl_path(seen.path);
  return seen;
}

// "NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>", without the address
std::optional<std::string> parse_devices(std::string_view message) {
  Cursor at(message);
  at.skip("NET/");
  const auto colon = at.rest().find(" : Using ");
  if (!at.ok() || colon == std::string_view::npos || colon > 20) return std::nullopt;
  const auto network = at.rest().substr(0, colon);
  auto devices = at.rest().substr(colon + 9);
  if (network == "Socket") {  // "[0]eth0:10.0.0.1<0>": the addresses are nobody's business
    devices = devices.substr(0, devices.find(':'));
  }
  devices = devices.substr(0, devices.find(';'));
  while (devices.ends_with(' ')) devices.remove_suffix(1);
  return fmt::format("NET/{} {}", network, devices);
}

void parse_message(std::string_view message, NcclLogFacts& facts) {
  if (auto seen = parse_path(message)) {
    facts.paths.push_back(std::move(*seen));
  } else if (auto devices = parse_devices(message)) {
    if (std::find(facts.devices.begin(), facts.devices.end(), *devices) == facts.devices.end()) {
      facts.devices.push_back(std::move(*devices));
    }
  }
}

}  // namespace

PathKind classify_nccl_path(std::string_view path) {
  if (path.starts_with("P2P/")) return PathKind::kP2p;
  if (path.starts_with("SHM/") || path == "direct shared memory") return PathKind::kShm;
  if (!path.starts_with("NET/")) return PathKind::kUnknown;
  path.remove_prefix(4);
  // A name and the number of the adapter: without both the line was cut.
  const auto slash = path.find('/');
  if (slash == std::string_view::npos || slash + 1 >= path.size() || path[slash + 1] < '0' ||
      path[slash + 1] > '9') {
    return PathKind::kUnknown;
  }
  const auto network = path.substr(0, slash);
  const auto options = path.substr(slash + 1);
  if (network == "Socket") return PathKind::kSocket;
  // IBext, IBext_v8: the adapters' own plugin. Another network that reads the GPU's memory is RDMA
  // as well, whatever its name.
  if (network == "IB" || network == "IBext" || network.starts_with("IBext_v")) {
    return PathKind::kRdma;
  }
  return options.find("/GDRDMA") != std::string_view::npos ? PathKind::kRdma : PathKind::kOtherNet;
}

NcclLogFacts parse_nccl_log(std::string_view text) {
  NcclLogFacts facts;
  while (true) {
    const auto end = text.find('\n');
    if (end == std::string_view::npos) return facts;
    auto line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const auto first = line.find(kMark);
    if (first == std::string_view::npos) continue;
    // Two messages in one line: where the first one ends cannot be told.
    if (line.find(kMark, first + 1) != std::string_view::npos) continue;
    parse_message(line.substr(first + kMark.size()), facts);
  }
}

}  // namespace tandem
