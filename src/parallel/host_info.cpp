#include "parallel/host_info.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string_view>

namespace tandem {
namespace {

bool is_bridge(std::string_view interface) {
  for (const std::string_view prefix : {"docker", "br-", "virbr", "veth", "lxc", "cni", "podman"}) {
    if (interface.starts_with(prefix)) return true;
  }
  return false;
}

std::string numeric(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.sa_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
  } else if (address.sa_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    if (IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr)) return {};  // means nothing to another host
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
  }
  return text;
}

}  // namespace

std::string host_name() {
  char name[256] = {};
  if (gethostname(name, sizeof name - 1) != 0) return "unknown-host";
  return name;
}

std::string host_id() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  return std::getline(in, id) && !id.empty() ? id : host_name();
}

std::vector<HostAddress> host_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<HostAddress> addresses;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    if ((at->ifa_flags & IFF_LOOPBACK) != 0) continue;
    if (auto text = numeric(*at->ifa_addr); !text.empty()) {
      addresses.push_back({.interface = at->ifa_name, .address = std::move(text)});
    }
  }
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const HostAddress& a) { return !is_bridge(a.interface); });
  return addresses;
}

std::vector<std::string> describe_interfaces() {
  std::vector<std::string> lines;
  for (const auto& [interface, address] : host_addresses()) {
    lines.push_back(interface + " " + address);
  }
  if (lines.empty()) lines.emplace_back("no interface but loopback");
  return lines;
}

}  // namespace tandem
