#include "kernels/cuda/targets.h"

#include <algorithm>
#include <charconv>
#include <vector>

namespace tandem::cuda {
namespace {

struct Target {
  int major = 0, minor = 0;
  bool exact = false;  // the letter a
  bool machine_code = true, ptx = true;
  std::string_view version;  // "90a"
};

std::vector<Target> parse(std::string_view list) {
  std::vector<Target> targets;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    std::string_view item = list.substr(0, end);
    list.remove_prefix(std::min(end + 1, list.size()));
    Target target;
    const std::size_t dash = item.find('-');
    if (dash != std::string_view::npos) {
      target.machine_code = item.substr(dash) == "-real";
      target.ptx = !target.machine_code;
      item = item.substr(0, dash);
    }
    int version = 0;
    const auto [rest, error] = std::from_chars(item.data(), item.data() + item.size(), version);
    if (error != std::errc{}) continue;
    target.version = item;
    target.major = version / 10;
    target.minor = version % 10;
    target.exact = rest != item.data() + item.size();
    targets.push_back(target);
  }
  return targets;
}

bool runs_on(const Target& t, int major, int minor) {
  if (t.exact) return t.major == major && t.minor == minor;
  return t.major == major && t.minor <= minor;
}

}  // namespace

TargetMatch match_target(std::string_view targets, int major, int minor) {
  TargetMatch best = TargetMatch::kNone;
  for (const Target& t : parse(targets)) {
    if (t.machine_code && runs_on(t, major, minor)) return TargetMatch::kNative;
    const bool later = t.major < major || (t.major == major && t.minor <= minor);
    if (t.ptx && (t.exact ? runs_on(t, major, minor) : later)) best = TargetMatch::kPtxOnly;
  }
  return best;
}

bool has_own_instructions(std::string_view targets, int major, int minor) {
  const std::vector<Target> list = parse(targets);
  return std::any_of(list.begin(), list.end(), [&](const Target& t) {
    return t.exact && t.machine_code && runs_on(t, major, minor);
  });
}

std::string describe_targets(std::string_view targets) {
  std::string text;
  const auto add = [&text](std::string_view prefix, std::string_view version) {
    if (!text.empty()) text += ' ';
    text.append(prefix).append(version);
  };
  for (const Target& t : parse(targets)) {
    if (t.machine_code) add("sm_", t.version);
    if (t.ptx) add("compute_", t.version);
  }
  return text;
}

std::string_view compiled_targets() { return TANDEM_CUDA_TARGETS; }

}  // namespace tandem::cuda
