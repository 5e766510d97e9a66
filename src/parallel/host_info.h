// This machine's name, identity and network addresses.
#pragma once

#include <string>
#include <vector>

namespace tandem {

// The machine's name, as people know it.
std::string host_name();
// Equal for processes under one kernel and for no others: containers of one machine, which share
// its memory and GPUs, agree.
std::string host_id();

struct HostAddress {
  std::string interface;
  std::string address;  // IPv4 dotted or IPv6, numeric
};
// Of the interfaces that are up, without loopback and link-local addresses. Bridges of containers
// and virtual machines come last: they have the same address on many hosts.
std::vector<HostAddress> host_addresses();
// For messages: "eth0 10.0.0.1".
std::vector<std::string> describe_interfaces();

}  // namespace tandem
